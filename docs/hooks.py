"""Turns links to files outside of docs/ into links to pages of the site.

Pages link to sources, tests and CONTRIBUTING.md by relative paths, so that the links work in a checkout. The site has
a page for each such file: Markdown files are rendered, others are shown with line numbers, and a link whose text is the
name of a function or class leads to the line of its definition.
"""

from __future__ import annotations

import ast
import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {"CONTRIBUTING.md": "contribute/index.md", "CHANGELOG.md": "contribute/changelog.md", "README.md": "index.md"}
"""Markdown files of the repository's root, and the pages that show them."""
LINK = re.compile(r"(?P<text>\[[^\]\[]*\])\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
CODE = re.compile(r"^( *```.*?^ *```)", re.DOTALL | re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each file that a page links to and that is not in docs/."""
    for source, page in PAGES.items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    linked = {path for file in files.documentation_pages() for path in outside_links(file)}
    for path in sorted(linked):
        files.append(File.generated(config, page_of(path), content=listing(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to files of the repository lead to the pages that show them."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    origin = origin_of(page.file.src_uri)

    def replace(match: re.Match[str]) -> str:
        path = resolve(origin, match["target"])
        if path is None:
            return match[0]
        anchor = match["anchor"] or line_anchor(path, match["text"].strip("[]`"))
        return f"{match['text']}({posixpath.relpath(page_of(path), posixpath.dirname(page.file.src_uri))}{anchor})"

    parts = CODE.split(markdown)
    return "".join(part if CODE.fullmatch(part) else LINK.sub(replace, part) for part in parts)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Tell MkDocs the anchors of lines of code, which it does not look for, so that it can check links to them."""
    if page.file.src_uri.startswith("source/"):
        page.present_anchor_ids = {*page.present_anchor_ids, *re.findall(r'\b(?:id|name)="([^"]+)"', html)}
    return html


def origin_of(src_uri: str) -> str:
    """Return the path in the repository of the file that a page shows."""
    return next((source for source, page in PAGES.items() if page == src_uri != "index.md"), f"docs/{src_uri}")


def resolve(origin: str, target: str) -> str | None:
    """Return the path in the repository to which a link of a file leads; None for other addresses."""
    if "://" in target or target.startswith(("mailto:", "/")):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def page_of(path: str) -> str:
    """Return the page that shows a file of the repository, as a path below docs/."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"


def outside_links(file: Any) -> set[str]:
    """Return the files outside of docs/ to which a page links, as paths in the repository."""
    targets = (match["target"] for match in LINK.finditer(CODE.sub("", file.content_string)))
    paths = {resolve(origin_of(file.src_uri), target) for target in targets}
    return {path for path in paths if path and not path.startswith("docs/") and path not in PAGES}


def listing(path: str) -> str:
    """Return the Markdown of the page that shows a file or folder; the search does not index it."""
    head = f"---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n\n# {path}\n\n"
    if (ROOT / path).is_dir():
        names = sorted(entry.name for entry in (ROOT / path).iterdir() if not entry.name.startswith(("_", ".")))
        return head + "\n".join(f"- `{name}`" for name in names) + "\n"
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return head + CODE.sub("", text)
    language = {".py": "python", ".toml": "toml"}.get(Path(path).suffix, "text")
    return f'{head}````{language} {{ linenums="1" }}\n{text}````\n'


@cache
def lines_of(path: str) -> dict[str, int]:
    """Return the lines at which a Python file defines functions, classes and methods."""
    lines = dict[str, int]()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            lines[node.name] = node.lineno
        if isinstance(node, ast.ClassDef):
            members = (member for member in node.body if isinstance(member, ast.FunctionDef))
            lines.update({f"{node.name}.{member.name}": member.lineno for member in members})
    return lines


def line_anchor(path: str, name: str) -> str:
    """Return the fragment that leads to the definition of a name in a Python file; empty if there is none."""
    line = lines_of(path).get(name) if path.endswith(".py") else None
    return f"#__codelineno-0-{line}" if line else ""
