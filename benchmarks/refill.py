"""What a refill that waits for lanes about to leave would bring (docs/adr/0017): repacks, slots and CPU seconds.

    python benchmarks/refill.py        # about two minutes

The rule: at an audit with v vacancies, wait for the next one if more than v live lanes are predicted to leave by then,
so that one repack admits all. It needs nothing of the loop: the source hands out nothing while it waits. Against it are
thresholds of vacancies, as `Mode(refill=..., min_shrink=...)` has them. Potentials are the same to the bit in all rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.core import Forecasts
from drainsinkhorn.core.events import fan_out
from drainsinkhorn.core.executor import execute
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import Mode
from drainsinkhorn.core.source import Admission, Batch
from drainsinkhorn.run.validate import validate

EVERY, TOL = 8, 1e-3
ROWS = {"refill 1": (1, 1), "refill 4": (4, 1), "refill 16": (16, 1), "refill 16, shrink 16": (16, 16)}
FORETOLD = {"forecast": (1, 1), "forecast, shrink 16": (1, 16)}


class Waiting(Batch):
    """A source that waits for lanes that are about to leave."""

    def __init__(self, admissions: Sequence[Admission], forecasts: Forecasts) -> None:
        super().__init__(admissions)
        self._forecasts = forecasts

    def take(self, count: int) -> Sequence[Admission]:
        lanes = self._forecasts.lanes().values()
        soon = sum(lane.predicted_depth is not None and lane.predicted_depth - lane.depth <= EVERY for lane in lanes)
        return () if soon > count else super().take(count)


def problems(n: int, count: int) -> list[ds.Problem[Any]]:
    """Clouds of n points, of depths from ten to a few hundred."""
    rng = np.random.default_rng(0)
    clouds = [(rng.normal(size=(n, 3)), 0.5 + rng.normal(size=(n, 3)), rng.uniform(-2, -0.5)) for _ in range(count)]
    return [ds.Problem(x=x, y=y, eps=float(10**strength)) for x, y, strength in clouds]


def run(batch: list[ds.Problem[Any]], mode: Mode, width: int | None, by_forecast: bool) -> tuple[float, Ledger, Any]:
    """CPU seconds, the account, and what came of every problem."""
    options = ds.Options(mode=mode, width=width, audit=ds.Audit(every=EVERY), tol=TOL)
    backend, ledger, forecasts = CpuBackend(threads=1).using("momentum"), Ledger(), Forecasts()
    admissions = [Admission(ticket, validate(problem, TOL)) for ticket, problem in enumerate(batch)]
    plan = options.plan(None, backend.hints(admissions[0].instance).width)
    source = Waiting(admissions, forecasts) if by_forecast else Batch(admissions)
    began, found = time.process_time(), dict[int, Any]()
    for retired in execute(backend, source, plan, fan_out(ledger, forecasts) if by_forecast else ledger):
        for outcome in retired.outcomes:
            assert outcome.potentials is not None
            found[outcome.ticket] = outcome.depth, outcome.potentials.f.tobytes(), outcome.potentials.g.tobytes()
    return time.process_time() - began, ledger, found


def main() -> None:
    for n, count, width in ((64, 3000, None), (64, 3000, 64), (200, 800, None), (200, 800, 32)):
        batch, truth, spent = problems(n, count), None, dict[str, list[float]]()
        ledgers = dict[str, Ledger]()
        for _ in range(5):
            for name, (refill, shrink) in (ROWS | FORETOLD).items():
                mode = Mode(name="stream", refill=refill, min_shrink=shrink)
                cpu, ledgers[name], found = run(batch, mode, width, name in FORETOLD)
                truth = truth or found
                assert found == truth, f"{name} changed a result"
                spent.setdefault(name, []).append(cpu)
        for name, ledger in ledgers.items():
            work = f"{ledger.repacks:4d} repacks {ledger.audits:4d} audits {ledger.slots:7d} slots"
            print(f"n={n:3d} width={width or 'natural':7} {name:20s} {work}  {min(spent[name]):.3f} CPU s", flush=True)


if __name__ == "__main__":
    main()
