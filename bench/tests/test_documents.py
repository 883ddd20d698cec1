"""Numbers in the documents agree with the campaigns."""

from __future__ import annotations

import re
from pathlib import Path

from drainsinkhorn_bench.arms import PEER_SECONDS

DOCS = Path(__file__).parents[2] / "docs"


def test_what_is_said_to_be_scaled_took_longer_than_the_limit() -> None:
    """A serial arm is scaled up only beyond its limit, so that no scaled figure is below it."""
    pages = {name: (DOCS / name).read_text() for name in ("benchmarks/run.md", "benchmarks/campaigns.md")}
    assert f"longer than {PEER_SECONDS:g} s for one run" in " ".join(pages["benchmarks/run.md"].split())
    cells = [line.split("|") for line in pages["benchmarks/campaigns.md"].splitlines()]
    scaled, column = list[str](), None
    for row in cells:
        if len(row) == 1:
            column = None
        marked = [place for place, cell in enumerate(row) if len(row) > 1 and "scaled" in cell]
        column = marked[0] if marked and not re.search(r"\d", row[marked[0]]) else column
        scaled += [row[place] for place in {*marked, *([column] if column else [])} if re.search(r"\d", row[place])]
    seconds = [float(number) for cell in scaled for number in re.findall(r"([\d.]+) s\b", cell)]
    assert len(seconds) >= 3
    assert min(seconds) > PEER_SECONDS
