"""How well the depth of a lane is predicted (`drainsinkhorn.core.DepthForecast`), plain and with momentum.

    python benchmarks/forecast.py                        # generated problems, audited in every cycle
    python benchmarks/forecast.py --every 8              # audited as by default
    python benchmarks/forecast.py --data DIR --json F    # and real windows from the .npz files of a folder

Every problem of `families.py` is solved to tol, its residuals are recorded at every audit, and each prefix of that
history is added to a DepthForecast. Rows are moments: a depth, the first residual below a bound, half of the run. A
ratio is the predicted depth over the depth reached. Lanes that have ended by then, or do not end, are left out;
"unknown" counts lanes without a forecast. "in 2x" is the share of ratios between 1/2 and 2, "rank" the rank correlation
of predicted and reached depth.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from depth import OURS, spread
from families import GENERATED, REAL, families
from scipy.stats import spearmanr

import drainsinkhorn as ds
from drainsinkhorn.core import DepthForecast
from drainsinkhorn.core.events import Advanced, Event

Point = tuple[int, float]
"""Depth and residual."""


class History(NamedTuple):
    """One problem: its residuals at audits, and the depth it came to."""

    points: list[Point]
    depth: int


class Recorder:
    """An observer that keeps every lane's residuals, by ticket."""

    def __init__(self) -> None:
        self.points: dict[int, list[Point]] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Advanced):
            for ticket, depth, stale, _ in event.standings():
                self.points.setdefault(ticket, []).append((depth, stale))


def histories(problems: Sequence[ds.Problem[Any]], tol: float, every: int, **settings: Any) -> list[History]:
    """Those of all problems that converged."""
    recorder = Recorder()
    solution = ds.solve(
        list(problems), tol=tol, audit=ds.Audit(every=every), observe=recorder, rescue=False, **settings
    )
    return [History(recorder.points[r.ticket], r.depth) for r in solution if r.converged]


Moment = Callable[[History], int | None]
"""How many points of a history are known at it; None if it does not come before the end."""


def at_depth(depth: int) -> Moment:
    def known(history: History) -> int | None:
        count = sum(d <= depth for d, _ in history.points)
        return count if history.depth > depth else None

    return known


def at_residual(bound: float) -> Moment:
    def known(history: History) -> int | None:
        for count, (depth, stale) in enumerate(history.points, 1):
            if stale <= bound:
                return count if depth < history.depth else None
        return None

    return known


def half_way(history: History) -> int | None:
    return sum(2 * d <= history.depth for d, _ in history.points) or None


def moments(depths: Sequence[int]) -> dict[str, Moment]:
    made = {f"depth {depth}": at_depth(depth) for depth in depths}
    made |= {f"residual {bound:g}": at_residual(bound) for bound in (0.1, 0.03)}
    return made | {"half way": half_way}


def predict_depth(history: History, known: int, tol: float) -> float | None:
    forecast = DepthForecast()
    for depth, stale in history.points[:known]:
        forecast.add(depth, stale)
    return forecast.depth(tol)


def judged(found: Sequence[History], moment: Moment, tol: float) -> dict[str, float]:
    """Ratios of predicted depth to depth reached, summarised."""
    there = [(history, known) for history in found if (known := moment(history)) is not None]
    pairs = [(predict_depth(history, known, tol), history.depth) for history, known in there]
    told = np.array([(p, d) for p, d in pairs if p is not None]).reshape(-1, 2)
    ratio = told[:, 0] / told[:, 1]
    if len(ratio) < 3:
        return {"lanes": len(there), "unknown": len(there) - len(ratio)}
    return {
        "lanes": len(there),
        "unknown": len(there) - len(ratio),
        "median": float(np.median(ratio)),
        "p10": float(np.quantile(ratio, 0.1)),
        "p90": float(np.quantile(ratio, 0.9)),
        "within": float(((ratio >= 0.5) & (ratio <= 2)).mean()),
        "rank": float(spearmanr(told[:, 0], told[:, 1])[0]),
    }


def show(table: dict[str, dict[str, dict[str, float]]]) -> None:
    columns = ("median", "p10", "p90", "within", "rank")
    print(f"{'moment':<16}{'arm':<10}{'lanes':>6}{'unknown':>8}" + "".join(f"{name:>8}" for name in columns))
    for moment, arms in table.items():
        for arm, row in arms.items():
            numbers = "".join(f"{row[name]:>8.2f}" if name in row else f"{'-':>8}" for name in columns)
            print(f"{moment:<16}{arm:<10}{row['lanes']:>6}{row['unknown']:>8}{numbers}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="folder with the .npz files of the real windows")
    parser.add_argument("--families", nargs="*", default=None, choices=[*GENERATED, *REAL])
    parser.add_argument("--arms", nargs="*", default=["momentum", "plain"], choices=list(OURS))
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--every", type=int, default=1, help="cycles between audits")
    parser.add_argument("--depths", nargs="*", type=int, default=[11, 15, 21])
    parser.add_argument("--limit", type=int, help="at most so many problems of a family")
    parser.add_argument("--max-depth", type=int, default=30_000)
    parser.add_argument("--json", type=Path, help="where to write the table")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    made = spread(families(options.seed, options.data, options.families), options.limit)
    problems = [p for _, p in made]
    found: dict[str, list[History]] = {}
    for arm in options.arms:
        found[arm] = histories(problems, options.tol, options.every, max_depth=options.max_depth, **OURS[arm])
        depths = [history.depth for history in found[arm]] or [0]
        print(
            f"{arm}: {len(found[arm])} of {len(problems)} problems reach {options.tol:g}; "
            f"depth median {np.median(depths):.0f}, mean {np.mean(depths):.0f}, max {max(depths)}"
        )
    table = {
        name: {arm: judged(found[arm], moment, options.tol) for arm in options.arms}
        for name, moment in moments(options.depths).items()
    }
    show(table)
    if options.json:
        options.json.write_text(json.dumps({"command": " ".join(["python", *sys.argv]), "table": table}, indent=1))


if __name__ == "__main__":
    main()
