"""A table that is told once and written as HTML, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from drainsinkhorn_bench.report import words
from drainsinkhorn_bench.report.figures.frame import Figure

VOID = "void"
FLAGS = {VOID: "void", "missed": "bad", "disagrees": "bad", "no": "bad", "yes": "good", "stopped": "good",
         "let out": "bad", "not as foretold": "bad"}  # fmt: skip
"""Cells that are one of these words are coloured on the page."""
SLIM = 66
"""Letters of the widest row that half the page holds."""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        key: Short name, unique in a report.
        title: Its caption.
        columns: Heads; one that begins with ">" holds numbers and is set to the right.
        rows: Cells as text; see `words` for what is written in another way on the page and in LaTeX.
        note: A sentence below.
        paper: Columns, by place, that hold the paper's numbers.
        folded: Shown on the page only when opened.
        about: What it belongs to; on the page that is the section.
    """

    key: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    paper: frozenset[int] = field(default_factory=frozenset[int])
    folded: bool = False
    about: str = ""

    @property
    def slim(self) -> bool:
        """Whether half the page is wide enough."""
        lines = [self.heads, *self.rows]
        return sum(max(len(line[place]) for line in lines) + 2 for place in range(len(self.columns))) <= SLIM

    @property
    def heads(self) -> list[str]:
        """Heads without their alignment."""
        return [column.removeprefix(">") for column in self.columns]

    def right(self, place: int) -> bool:
        """Whether a column is set to the right."""
        return self.columns[place].startswith(">")

    def html(self) -> str:
        """Return the table as HTML."""
        head = "".join(self._cell("th", place, text) for place, text in enumerate(self.heads))
        body = "".join(
            "<tr>" + "".join(self._cell("td", place, text) for place, text in enumerate(row)) + "</tr>"
            for row in self.rows
        )
        note = f'<p class="note">{words.html(self.note)}</p>' if self.note else ""
        table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}'
        title = words.html(self.title[:1].upper() + self.title[1:])
        if self.folded:
            return f'<details class="tab" id="{escape(self.key)}"><summary>{title}</summary>{table}</details>'
        return f'<div class="tab{" slim" if self.slim else ""}" id="{escape(self.key)}"><h4>{title}</h4>{table}</div>'

    @property
    def _whole(self) -> str:
        return f"{self.about}: {self.title}" if self.about else self.title[:1].upper() + self.title[1:]

    def _cell(self, name: str, place: int, text: str) -> str:
        classes = [word for word, on in (("r", self.right(place)), ("paper", place in self.paper)) if on]
        shown = words.html(text)
        if name == "td" and text in FLAGS:
            shown = f'<span class="flag {FLAGS[text]}">{shown}</span>'
        given = f' class="{" ".join(classes)}"' if classes else ""
        return f"<{name}{given}>{shown}</{name}>"

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rule = ["---:" if self.right(place) else "---" for place in range(len(self.columns))]
        lines = [self.heads, rule, *self.rows]
        text = "\n".join("| " + " | ".join(words.markdown(cell) for cell in line) + " |" for line in lines)
        return f"### {self._whole}\n\n{text}\n" + (f"\n{self.note}\n" if self.note else "")

    def latex(self) -> str:
        """Return the table as LaTeX, which needs booktabs and graphicx."""
        form = "".join("r" if self.right(place) else "l" for place in range(len(self.columns)))
        lines = [r" & ".join(words.latex(cell) for cell in line) + r" \\" for line in [self.heads, *self.rows]]
        note = [rf"\par\smallskip{{\footnotesize {words.latex(self.note)}}}"] if self.note else []
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{words.latex(self._whole)}}}",
                rf"\label{{tab:{self.key}}}",
                # Only what is too wide is made smaller.
                r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
                rf"\begin{{tabular}}{{@{{}}{form}@{{}}}}",
                r"\toprule",
                lines[0],
                r"\midrule",
                *lines[1:],
                r"\bottomrule",
                r"\end{tabular}}",
                *note,
                r"\end{table}",
                "",
            ]
        )


Block = Figure | Table
"""What a section is made of."""
