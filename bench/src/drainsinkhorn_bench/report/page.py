"""The page: one HTML file with its style, its script and its figures inside; nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources

from drainsinkhorn_bench.report import notes, words
from drainsinkhorn_bench.report.claims import STATES, Claim, state
from drainsinkhorn_bench.report.sections import Section
from drainsinkhorn_bench.report.tables import Block, Table


def render(
    opening: Sequence[tuple[str, str]],
    claims: Sequence[Claim],
    overview: Section,
    parts: Sequence[Section],
    last: Section,
) -> str:
    """Return the HTML of the page; `opening` has the labels and texts of its first paragraphs."""
    files = resources.files("drainsinkhorn_bench.report")
    style, script = ((files / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    sections = [overview, *parts]
    links = "".join(f'<li><a href="#{part.key}">{words.html(_short(part))}</a></li>' for part in [*sections, last])
    body = "\n".join(map(_section, sections))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>drainsinkhorn: measured</title>\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n"
        '<div class="frame">\n<nav aria-label="Contents"><p class="mark-name">drainsinkhorn</p>'
        f'<ol>{links}</ol><button type="button" class="theme" hidden>Dark page</button></nav>\n<main>\n'
        f"{_header(opening, claims)}\n{body}\n{_method()}\n{_section(last)}\n"
        f"</main>\n</div>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _short(part: Section) -> str:
    """A title for the list of contents: without what follows a colon or stands in brackets."""
    return part.title.split(":")[0].split(" (")[0]


def _header(opening: Sequence[tuple[str, str]], claims: Sequence[Claim]) -> str:
    said = "".join(f"<p><b>{words.html(label)}.</b> {words.html(text)}</p>" for label, text in opening)
    cards = "".join(
        f'<li class="{state(claim)}"><span class="state">{STATES[state(claim)]}</span>'
        f"<b>{words.html(claim.name)}</b><span>measured: {words.html(claim.found)}</span>"
        f"<span>required: {words.html(claim.asked)}</span></li>"
        for claim in claims
    )
    return (
        f"<header><h1>{words.html(notes.TITLE)}</h1><p>{words.html(notes.PURPOSE)}</p>{said}</header>"
        f'<h2 class="quiet">{words.html(notes.CLAIMS)}</h2><p class="note">{words.html(notes.CARDS)}</p>'
        f'<ul class="cards">{cards}</ul>'
    )


def _section(part: Section) -> str:
    chips = "".join(f'<li class="{escape(kind)}">{words.html(text)}</li>' for kind, text in part.chips)
    lines = "".join(f"<li>{words.html(text)}</li>" for text in part.differs)
    differs = f'<div class="differs"><b>What differs from the paper</b><ul>{lines}</ul></div>' if lines else ""
    return (
        f'<section id="{escape(part.key)}"><h2>{words.html(part.title)}</h2>'
        + (f'<p class="lead">{words.html(part.lead)}</p>' if part.lead else "")
        + (f'<ul class="chips">{chips}</ul>' if chips else "")
        + differs
        + f'<div class="blocks">{"".join(_arranged(part.blocks))}</div></section>'
    )


def _arranged(blocks: Sequence[Block]) -> Iterator[str]:
    """Yield the HTML of blocks in their order.

    A half-width block with no half-width block of its type beside it takes the whole width. A figure then has its text
    beside it.
    """
    waiting = False
    for place, block in enumerate(blocks):
        text = block.html()
        if _half(block):
            follows = place + 1 < len(blocks) and _half(blocks[place + 1]) == _half(block)
            if not waiting and not follows:
                text = text.replace('class="fig', 'class="fig alone', 1).replace('class="tab slim', 'class="tab', 1)
            else:
                waiting = not waiting
        yield text


def _half(block: Block) -> str | None:
    """Return "table" or "figure" if half the page's width is enough for the block, else None."""
    if isinstance(block, Table):
        return "table" if block.slim and not block.folded else None
    return None if block.wide else "figure"


def _method() -> str:
    terms = "".join(f"<dt>{words.html(term)}</dt><dd>{words.html(text)}</dd>" for term, text in notes.METHOD.items())
    return f'<section id="method"><h2>How it is measured</h2><dl class="method">{terms}</dl></section>'
