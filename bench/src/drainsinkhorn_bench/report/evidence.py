"""Questions that figures and tables ask of a run; answers come from its manifest and records alone."""

from __future__ import annotations

import functools
import statistics as middle
from collections.abc import Mapping, Sequence
from typing import Any

from drainsinkhorn_bench import statistics
from drainsinkhorn_bench.records import Record, Run
from drainsinkhorn_bench.report import paper, words
from drainsinkhorn_bench.report.figures.frame import Series, palette
from drainsinkhorn_bench.report.figures.speed import Measured

ENDPOINTS = {"e1": "to potentials", "e2": "with the consumer", "e3": "with training"}
ALIASES = {"n": ("n", "points"), "width": ("width", "W", "lanes"), "eps": ("eps",), "every": ("every", "audit_every")}


class Evidence:
    """A run, with what is asked of it more than once worked out once.

    Args:
        run: The campaign as its files tell it.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.manifest = run.manifest
        self.name = run.name
        labels = {arm["name"]: arm["label"] for arm in self.manifest["arms"]}
        self.arms: dict[str, Series] = palette(labels, labels)
        self.units: dict[str, dict[str, Any]] = {unit["name"]: unit for unit in self.manifest["units"]}
        self.void = statistics.failed(run)
        self.gates = run.kind("gate")
        self.timings = statistics.timings(run)
        self._pairs = dict[tuple[str, str, tuple[str, ...], str], statistics.Summary]()

    @functools.cached_property
    def contrasts(self) -> list[dict[str, Any]]:
        """Contrasts of the manifest, those of the same arms and endpoint together."""
        asked = list[dict[str, Any]](self.manifest["contrasts"])
        kinds = list(dict.fromkeys(map(_kind, asked)))
        return sorted(asked, key=lambda contrast: kinds.index(_kind(contrast)))

    @functools.cached_property
    def measured(self) -> list[Measured]:
        """Every contrast, summed up."""
        return [self.contrast(contrast) for contrast in self.contrasts]

    def contrast(self, contrast: Mapping[str, Any]) -> Measured:
        """Sum up a contrast."""
        found = statistics.summarise(self.run, contrast)
        top, bottom = (self.label(contrast[role]) for role in ("denominator", "numerator"))
        said = [f"{top} / {bottom}"] if not contrast["name"].startswith(f"{top} / {bottom}") else []
        said += [ENDPOINTS[contrast["endpoint"]]] if contrast["endpoint"] != "e1" else []
        said += ["consumer's time subtracted"] if found.reconstructed else []
        said += ["scaled up from some problems"] if found.extrapolated else []
        said += [f"{words.plural(len(found.void), 'unit')} void"] if found.void else []
        interval = found.interval
        low, high = (interval.low, interval.high) if interval is not None else (1.0, 1.0)
        wins = f"{found.wins} of {found.pairs}" if found.pairs else words.DASH
        tone = self.arms[contrast["numerator"]].tone
        name = str(contrast["name"])
        below = "; ".join(said)
        theirs, missing = quoted(self.name, contrast.get("paper")), "void" if found.void else "not run"
        return Measured(name, below, found.ratio, low, high, wins, len(found.units), theirs, missing, tone)

    def pair(self, top: str, bottom: str, units: Sequence[str] | None, endpoint: str = "e1") -> statistics.Summary:
        """Seconds of one arm over those of another, in some units."""
        key = (top, bottom, tuple(units or ()), endpoint)
        if key not in self._pairs:
            name = f"{top} / {bottom}, {', '.join(units or ('all',))}"
            asked = {"name": name, "numerator": bottom, "denominator": top, "endpoint": endpoint, "units": units}
            self._pairs[key] = statistics.summarise(self.run, asked)
        return self._pairs[key]

    def label(self, arm: str) -> str:
        """What a reader sees for an arm."""
        return self.arms[arm].label

    def option(self, unit: str, name: str) -> Any:
        """An option of a unit, or of the campaign, under any of its names."""
        for options in (self.units[unit]["options"], self.manifest["options"]):
            for alias in ALIASES.get(name, (name,)):
                if alias in options:
                    return options[alias]
        return self.units[unit].get(name)

    def options(self, name: str) -> list[Any]:
        """All values of an option over the units, in order, without repeats."""
        found = [self.option(unit, name) for unit in self.units]
        return list(dict.fromkeys(_hashable(value) for value in found if value is not None))

    def typical(self, unit: str, arm: str, endpoint: str = "e1") -> float | None:
        """Median seconds."""
        return self.median(unit, arm, lambda record: record["seconds"][endpoint])

    def median(self, unit: str | None, arm: str, ask: Any) -> float | None:
        """Return the median of `ask(record)` over timed runs of an arm, in one unit, or in all if `unit` is None."""
        own = [record for record in self.timings if record["arm"] == arm and unit in (None, record["unit"])]
        values = [value for record in own if (value := ask(record)) is not None]
        return middle.median(values) if values else None

    def facts(self, name: str) -> list[Record]:
        """Facts of a name."""
        return self.run.facts(name)

    def depths(self, unit: str) -> tuple[str, list[int]] | None:
        """Depths of a unit's problems, and the arm that ran them: compact, else the first that knows them all."""
        known = {gate["arm"]: gate["depths"] for gate in self.gates if gate["unit"] == unit and gate["passed"]}
        order = sorted(known, key=lambda arm: ("compact" not in arm, list(self.arms).index(arm)))
        for arm in order:
            if known[arm] and all(isinstance(depth, int) for depth in known[arm]):
                return arm, known[arm]
        return None

    def padding(self, unit: str, compact: str = "compact") -> float | None:
        """Static slots over needed slots, less one, as the timed runs of a compact arm counted them."""
        for arm in (compact, "mask", *self.arms):
            value = self.median(unit, arm, lambda record: record.get("padding")) if arm in self.arms else None
            if value is not None:
                return value
        return None

    @property
    def machine(self) -> str:
        """The machines in words."""
        facts = list(self.run.hosts.values()) or [self.manifest["machine"]]
        return "; ".join(dict.fromkeys(map(described, facts)))

    @property
    def gpu(self) -> bool:
        """Whether a GPU was used."""
        return any(facts.get("gpu") for facts in (*self.run.hosts.values(), self.manifest["machine"]))

    @property
    def generated(self) -> bool:
        """Whether no file was read."""
        return not self.manifest["inputs"]


def _kind(contrast: Mapping[str, Any]) -> tuple[str, str, str]:
    return contrast["denominator"], contrast["numerator"], contrast["endpoint"]


def described(facts: Mapping[str, Any]) -> str:
    """A machine in words: its GPU, or its processor and cores."""
    if facts.get("gpu"):
        number = facts.get("gpu_count") or 1
        return f"{number} × {facts['gpu']}" if number > 1 else str(facts["gpu"])
    cores = facts.get("cores")
    return f"{facts.get('processor') or 'CPU'}" + (f", {words.plural(cores, 'core')}" if cores else "")


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def quoted(campaign: str, given: Any) -> paper.Ratio | None:
    """The paper's number that a contrast names: by key, or in full as value and source."""
    if given is None:
        return None
    if isinstance(given, str):
        return paper.RATIOS.get(given)
    if isinstance(given, int | float):
        given = {"value": given}
    if given.get("key") in paper.RATIOS:
        return paper.RATIOS[given["key"]]
    value, source = given["value"], given.get("source", "")
    if value is None:
        return None
    # A number that is also in our list comes with its interval and its label there.
    alike = [(key, ratio) for key, ratio in paper.RATIOS.items() if ratio.value == value]
    own = [ratio for key, ratio in alike if key.startswith(f"{campaign}/")]
    other = [ratio for _, ratio in alike if ratio.source == source]
    for ratio in (*own, *other):
        return ratio
    return paper.Ratio(
        value, source, given.get("what", ""), given.get("low"), given.get("high"), given.get("spread", "")
    )


def spread(values: Sequence[Any], most: int) -> list[Any]:
    """Return at most `most` values, evenly spaced, the first and the last included."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def is_let_out(attack: dict[str, Any]) -> bool:
    """True if an attack got a wrong answer past the library, which the external audit alone has seen."""
    # Records of older campaigns count what the audit saw as caught, and name the audit's gate as the guard.
    return bool(attack.get("let_out")) or (bool(attack["caught"]) and attack.get("stopped_by") == "gate")


def is_stopped(attack: dict[str, Any]) -> bool:
    """True if the library itself stopped an attack."""
    return bool(attack["caught"]) and not is_let_out(attack)
