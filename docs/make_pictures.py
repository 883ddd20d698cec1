"""Run the Python blocks of tutorials and migration pages; write their pictures and the text that they print.

    python docs/make_pictures.py                  # every page
    python docs/make_pictures.py cells lidar      # some pages, by name

The blocks of a page save pictures in the current folder, which is docs/assets/tutorials here. If a text block follows a
Python block, its content is replaced by what the Python block prints.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
from pathlib import Path

DOCS = Path(__file__).parent
PAGES = sorted([*(DOCS / "tutorials").glob("*.md"), *(DOCS / "coming-from").glob("*.md")])
BLOCK = re.compile(r"^(```python\n)(.*?)(^```\n)(\n```text\n)?(?(4)(.*?)(^```\n))", flags=re.DOTALL | re.MULTILINE)


def run_page(page: Path) -> str:
    """Run the Python blocks of a page in the current folder; return the page with the text that they print."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    namespace: dict[str, object] = {}

    def run_block(block: re.Match[str]) -> str:
        opening, code, closing, text_opening, _, text_closing = block.groups()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), namespace)
        text = f"{text_opening}{printed.getvalue()}{text_closing}" if text_opening else ""
        return opening + code + closing + text

    mpl.use("Agg")
    try:
        # Settings of one page must not change the pictures of another.
        with mpl.rc_context():
            return BLOCK.sub(run_block, page.read_text())
    finally:
        plt.close("all")


def main() -> None:
    """Run the named pages, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="names of pages without .md")
    names = parser.parse_args().names
    # POT, which torchcfm imports, prints a remark about KeOps when it is first imported.
    with contextlib.suppress(ImportError):
        importlib.import_module("ot")
    os.chdir(DOCS / "assets/tutorials")
    for page in PAGES:
        if not names or page.stem in names:
            page.write_text(run_page(page))


if __name__ == "__main__":
    main()
