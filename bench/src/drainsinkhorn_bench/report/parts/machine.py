"""Workers, cost of a cycle, kernels, configuration: what a campaign says of the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drainsinkhorn_bench.report import notes, paper, words
from drainsinkhorn_bench.report.evidence import Evidence, spread
from drainsinkhorn_bench.report.figures import machine
from drainsinkhorn_bench.report.tables import Block, Table


def crews(e: Evidence) -> Iterator[Block]:
    """Yield a figure and a table of throughput by number of workers."""
    routes = dict[str, list[machine.Crew]]()
    rows = list[list[str]]()
    for fact in e.facts("workers"):
        value = fact["value"]
        name = str(value.get("route") or fact["unit"] or "windows")
        scaling = value["efficiency"] * value["workers"]
        told = f"{name}: {words.plural(value['workers'], 'worker')}, {words.times(scaling)}, "
        told += f"efficiency {words.percent(value['efficiency'], 1)}, {words.seconds(value['seconds'])}"
        routes.setdefault(name, []).append(machine.Crew(value["workers"], scaling, told))
        efficiency = words.percent(value["efficiency"], 1)
        rows.append([name, str(value["workers"]), words.seconds(value["seconds"]), words.times(scaling), efficiency])
    if not rows:
        return
    for found in routes.values():
        found.sort()
    cores = e.manifest["machine"].get("cores")
    most = max(crew.workers for found in routes.values() for crew in found)
    note = notes.WORKERS
    if not e.gpu and cores and most > cores:
        note += f" This machine has {words.plural(cores, 'core')}; more workers than that share them."
    yield machine.scaleout(f"{e.name}-workers", routes, paper.SCALEOUT, note)
    low, high = paper.SCALEOUT[4]
    rows.append(["paper", "4", words.DASH, f"{low}–{high}×", words.percent(low / 4, 1)])
    columns = ("route", ">workers", ">seconds", ">throughput over one", ">efficiency")
    yield Table(f"{e.name}-worker-table", "workers", columns, rows)


def curves(e: Evidence) -> Iterator[Block]:
    """Yield a figure of the cost of a cycle by width."""
    found = dict[str, dict[int, float]]()
    for fact in e.facts("curve"):
        value = fact["value"]
        name = ", ".join(part for part in (fact["unit"], e.label(fact["arm"]) if fact["arm"] else None) if part)
        found[name] = dict(zip(value["widths"], value["seconds"], strict=True))
    if found:
        note = notes.CURVE
        yield machine.cost_curve(f"{e.name}-curve", {name: found[name] for name in spread(list(found), 5)}, note)


def kernels(e: Evidence) -> Iterator[Block]:
    """Yield a figure of kernel times beside the least times that the machine allows."""
    values = [fact["value"] for fact in e.facts("roofline")]
    found = [machine.Kernel(str(v["kernel"]), v["seconds"], v["floor"], _bound(v)) for v in values]
    if found:
        note = notes.ROOFLINE
        yield machine.roofline(f"{e.name}-roofline", found, note)


def _spacing(every: Any) -> str:
    """Cycles between audits, in words."""
    if every is None:
        return "as the backend likes"
    if isinstance(every, dict):
        return f"{words.plain(every.get('first'))}, then each {every.get('ratio')} times the one before"
    return words.plain(every)


def settings(e: Evidence) -> Iterator[Block]:
    """Configuration, here and in the paper."""
    setting = paper.SETTINGS.get(e.name)
    told = [arm["options"].get("audit") for arm in e.manifest["arms"]]
    every = ", ".join(sorted({_spacing(audit.get("every")) for audit in told if isinstance(audit, dict)}))
    data = "generated" if e.generated else str(e.manifest["options"].get("data", ", ".join(e.manifest["inputs"])))
    here = {
        "data": data,
        "n": words.plain(e.options("n")),
        "width": words.plain(e.options("width")),
        "eps": words.plain(e.options("eps")),
        "audits every": every or words.DASH,
        "tolerance": ", ".join(words.tolerance(tol) for tol in e.options("tol")),
        "units": words.plural(len(e.units), "unit") if e.units else words.plural(len(e.manifest["studies"]), "study"),
        "machine": e.machine,
    }
    theirs = {
        "data": setting.data,
        "n": words.plain(setting.n),
        "width": words.plain(setting.width),
        "eps": words.plain(setting.eps),
        "audits every": words.plain(setting.every),
        "tolerance": ", ".join(words.tolerance(tol) for tol in setting.tol),
        "units": setting.units,
        "machine": setting.machine,
    } if setting else {}  # fmt: skip
    rows = [[name, value or words.DASH, theirs.get(name) or words.DASH] for name, value in here.items()]
    name = setting.name if setting else "paper"
    title = "configuration"
    yield Table(f"{e.name}-settings", title, ("", "here", f"paper ({name})"), rows, paper=frozenset({2}), folded=True)


def _bound(value: Mapping[str, Any]) -> str:
    """What limits the least time of a kernel, and in what arithmetic the kernel runs."""
    return "; ".join(str(value[key]) for key in ("bound", "arithmetic") if value.get(key))
