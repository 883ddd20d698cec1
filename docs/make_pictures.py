"""Run the Python blocks of tutorials and migration pages; write their pictures and the text that they print.

    python docs/make_pictures.py                  # every page
    python docs/make_pictures.py cells lidar      # some pages, by name

The blocks of a page save pictures in the current folder, here a temporary one. This script reduces the pictures to 256
colours, which makes the files smaller, and copies them to docs/assets/tutorials. If a text block follows a Python
block, its content is replaced by what the Python block prints.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
import shutil
import tempfile
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


def reduce_colours(picture: Path) -> None:
    """Store a picture with a palette of 256 colours."""
    from PIL import Image

    with Image.open(picture) as image:
        image.convert("RGB").quantize(256).save(picture, optimize=True)


def main() -> None:
    """Run the named pages, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="names of pages without .md")
    names = parser.parse_args().names
    # POT, which torchcfm imports, prints a remark about KeOps when it is first imported.
    with contextlib.suppress(ImportError):
        importlib.import_module("ot")
    folder = DOCS / "assets/tutorials"
    for page in PAGES:
        if names and page.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            with contextlib.chdir(scratch):
                page.write_text(run_page(page))
            for picture in Path(scratch).glob("*.png"):
                reduce_colours(picture)
                shutil.copy(picture, folder / picture.name)


if __name__ == "__main__":
    main()
