"""What the report says of one campaign: its heading, and the parts that its records fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from drainsinkhorn_bench.report import notes, paper, words
from drainsinkhorn_bench.report.evidence import Evidence
from drainsinkhorn_bench.report.parts import machine, speed, truth, work
from drainsinkhorn_bench.report.tables import Block, Table

PARTS: tuple[Callable[[Evidence], Iterator[Block]], ...] = (
    speed.ratios,
    speed.sweeps,
    speed.frontier,
    work.layouts,
    truth.decisions,
    truth.attacks,
    truth.shadow,
    machine.crews,
    work.survivals,
    work.traces,
    speed.times,
    truth.native,
    truth.quality,
    machine.curves,
    machine.kernels,
    work.resources,
    machine.settings,
    truth.gates,
    truth.left_out,
)


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        key: Anchor.
        title: Heading.
        lead: What is asked.
        chips: Short facts shown under the heading.
        differs: What is not as in the paper.
        blocks: Figures and tables.
    """

    key: str
    title: str
    lead: str = ""
    chips: Sequence[tuple[str, str]] = ()
    differs: Sequence[str] = ()
    blocks: Sequence[Block] = field(default_factory=tuple[Block, ...])


def section(e: Evidence) -> Section:
    """The section of a campaign."""
    blocks = sorted((block for part in PARTS for block in part(e)), key=_rank)
    blocks = [replace(b, about=e.manifest["title"]) if isinstance(b, Table) else b for b in blocks]
    lead = notes.INTRODUCTIONS.get(e.name, "")
    return Section(e.name, e.manifest["title"], lead, chips(e), differs(e), blocks)


def _rank(block: Block) -> int:
    """Return the place of a block in a section: ratios, half-width figures, wide figures, tables, collapsed tables."""
    if isinstance(block, Table):
        return 4 if block.folded else 3
    return 0 if block.first else 2 if block.wide else 1


def chips(e: Evidence) -> list[tuple[str, str]]:
    """Short facts: kind and text."""
    failed = len(e.void)
    standing = len({(gate["unit"], gate["arm"]) for gate in e.gates}) - failed
    found = [
        ("machine", e.machine),
        (
            "warn" if e.generated else "data",
            "generated data" if e.generated else e.manifest["options"].get("data", "data"),
        ),
        ("scale", f"{e.manifest['scale']} scale"),
    ]
    if e.timings:
        found.append(("plain", words.plural(len(e.timings), "timed run")))
    if standing or failed:
        found.append(("good", f"{words.plural(standing, 'gate')} passed"))
    if failed:
        found.append(("bad", f"{failed} void"))
    return found


def differs(e: Evidence) -> list[str]:
    """Sentences on what is not as in the paper."""
    said = [sentence(text) for text in e.manifest["options"].get("differs", ())]
    setting = paper.SETTINGS.get(e.name)
    if setting is not None:
        said.insert(0, f"Measured on {e.machine}; the paper's numbers come from {setting.machine} ({setting.source}).")
    return list(dict.fromkeys(said))


def sentence(text: str) -> str:
    """A sentence with its capital and its full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
