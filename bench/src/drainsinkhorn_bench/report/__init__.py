"""The report of some runs: one self-contained page, and its tables in Markdown and LaTeX.

A pure function of manifests and raw records: the same files give the same bytes, on any machine, at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drainsinkhorn_bench.records import Run
from drainsinkhorn_bench.report import claims, overview, page
from drainsinkhorn_bench.report.evidence import Evidence
from drainsinkhorn_bench.report.sections import section
from drainsinkhorn_bench.report.tables import Table

ORDER = ("metropt3", "packer19", "imagenet", "lidar", "transfer", "grouping", "attribution", "precision", "scaleout")
"""Campaigns as the report shows them; others follow by name."""


def build(runs: Sequence[Run]) -> dict[str, str]:
    """The files of a report by name: index.html, tables.md, tables.tex."""
    place = {name: number for number, name in enumerate(ORDER)}
    every = [Evidence(run) for run in sorted(runs, key=lambda run: (place.get(run.name, len(ORDER)), run.name))]
    found = claims.claims(every)
    parts = [*map(section, every), overview.foretold(every)]
    first, last = overview.glance(every), overview.provenance(every)
    tables = [claims.claim_table(found)]
    tables += [block for part in [*parts, last] for block in part.blocks if isinstance(block, Table)]
    head = (
        "Written by `drain bench report` from raw records; `paper` is the paper's own number, on its machine and data."
    )
    return {
        "index.html": page.render(overview.opening(every, found), found, first, parts, last),
        "tables.md": f"# Tables\n\n{head}\n\n" + "\n".join(table.markdown() for table in tables),
        "tables.tex": f"% {head}\n% Needs booktabs and graphicx.\n\n" + latex(tables),
    }


def latex(tables: Sequence[Table]) -> str:
    """Tables as LaTeX; those of a campaign begin a page, since LaTeX holds back only so many floats."""
    text, about = list[str](), ""
    for table in tables:
        if table.about != about:
            text.append("\\clearpage\n")
            about = table.about
        text.append(table.latex())
    return "\n".join(text)


def write(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write the report of some runs into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    written = list[Path]()
    for name, text in build(runs).items():
        path = folder / name
        # Line ends are ours, whatever the system's are, so that bytes agree everywhere.
        path.write_text(text, encoding="utf-8", newline="\n")
        written.append(path)
    return written
