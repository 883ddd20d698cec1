"""Time two states of the library against each other: the same cells in turns, each state in a process of its own.

    git worktree add ../old COMMIT
    python benchmarks/old_and_new.py --old ../old/src
    python benchmarks/old_and_new.py --old ../old/src --host
    python benchmarks/old_and_new.py --old ../old/src --cells "cpu/*"
    python benchmarks/old_and_new.py --old ../old/src --device cuda --cells wide small scores plain "gpu/*"

A process keeps its memory layout and often its core, and so its speed, for its life: every cell is timed by several
pairs of processes, one pair after the other. A pair solves the cell before anything is timed. Then it runs rounds of
two laps, old, new and new, old: a state that ran last finds its caches warm, and over a round each state does so once.
Every second pair has the states exchanged. A ratio is new over old: of a round the geometric mean of its laps, of a
pair the median over rounds, of all pairs the geometric mean. Its interval is a bootstrap over pairs and over rounds
within them. The verdict is that of processor time, of all threads, on the CPU, where wall time suffers from other
work on the machine, and that of wall time on a CUDA device. To see what the machine can resolve, compare a state with
itself. Results are compared first: converged problems, depths, and the largest difference of potentials over eps.
`same_bits.py` compares results thoroughly.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from states import State, serve

LAP = 0.1
"""Seconds that a lap takes at least: short solves are repeated."""
LIMIT = 0.02
"""Change of speed that a refactoring may make."""
DRAWS = 2000
"""Samples of a bootstrap."""


def answer_for(asked: argparse.Namespace) -> Any:
    """What a state answers: names of cells, or seconds of one lap, with depths and some potentials where asked."""
    from lap_cells import CELLS

    import drainsinkhorn as ds

    data = None if asked.data is None else Path(asked.data)
    made: dict[str, Any] = {}
    warnings.simplefilter("ignore")

    def answer(request: dict[str, Any]) -> Any:
        if "cell" not in request:
            return {name: cell.needs_data for name, cell in CELLS.items()}
        name, repeats = request["cell"], request["repeats"]
        cell = CELLS[name]
        if name not in made:
            made.clear()
            made[name] = cell.make(asked.device, data)
        positional, keywords = made[name]
        wall, spent = time.perf_counter(), time.process_time()
        for _ in range(repeats):
            solution = ds.solve(*positional, **keywords, **cell.options)
        if asked.device == "cuda":
            sys.modules["torch"].cuda.synchronize()
        lap = {"wall": (time.perf_counter() - wall) / repeats, "processor": (time.process_time() - spent) / repeats}
        return lap | (outcome(solution) if request.get("check") else {})

    return answer


def outcome(solution: Any) -> dict[str, Any]:
    """Depths, number of converged problems, and the first entries of f over eps, in nats."""
    nats = []
    for result in solution:
        f = result.potentials.f
        f = np.asarray(f.cpu() if hasattr(f, "cpu") else f)
        nats.append((f[:8].astype(np.float64) / float(result.problem.eps)).tolist())
    converged = sum(result.converged for result in solution)
    return {"depths": [result.depth for result in solution], "converged": converged, "nats": nats}


def rounds_of_pair(cell: str, swapped: bool, asked: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Seconds (rounds, 2, 2) of one pair of processes by measure, and how their results compare.

    The second axis is the lap of a round, the third old and new. `swapped` starts the new state first, and begins each
    round with it.
    """
    arguments = ["--serve", "--device", asked.device, *([] if asked.data is None else ["--data", asked.data])]
    order = (1, 0) if swapped else (0, 1)
    states = {side: State(__file__, (asked.old, asked.new)[side], arguments) for side in order}
    check = {side: states[side].ask({"cell": cell, "repeats": 1, "check": True}) for side in order}
    seconds = [states[side].ask({"cell": cell, "repeats": 1})["wall"] for side in order]
    request = {"cell": cell, "repeats": max(1, math.ceil(LAP / max(seconds)))}
    rounds: list[list[dict[int, Any]]] = []
    for _ in range(asked.rounds):
        laps = [{side: states[side].ask(request) for side in turn} for turn in (order, order[::-1])]
        rounds.append(laps)
    for state in states.values():
        state.close()
    measures = {
        name: np.array([[[lap[side][name] for side in (0, 1)] for lap in laps] for laps in rounds])
        for name in ("wall", "processor")
    }
    return measures, compared(check[0], check[1])


def compared(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Both results of a cell in short words."""
    count = len(old["depths"])
    equal = sum(p == q for p, q in zip(old["depths"], new["depths"], strict=True))
    apart = max(float(np.abs(np.subtract(p, q)).max()) for p, q in zip(old["nats"], new["nats"], strict=True))
    converged = f"{old['converged']}, {new['converged']}"
    return f"{equal} of {count} depths equal, {converged} converged, {apart:.2g} nats apart"


class Ratio(NamedTuple):
    """New over old: the estimate and its 95 % interval, and the medians of both in seconds."""

    value: float
    low: float
    high: float
    old: float
    new: float

    @property
    def verdict(self) -> str:
        """What the interval says."""
        if self.low >= 1 - LIMIT and self.high <= 1 + LIMIT:
            return "within 2 %"
        if self.low <= 1 <= self.high:
            return "interval contains 1"
        return "slower" if self.low > 1 else "faster"


def ratio_of(pairs: list[Any]) -> Ratio:
    """The ratio of rounds (rounds, 2, 2) of several pairs of processes."""
    ratios = [np.log(rounds[..., 1] / rounds[..., 0]).mean(axis=1) for rounds in pairs]
    rng = np.random.default_rng(0)

    def resampled() -> float:
        picked = rng.integers(0, len(ratios), len(ratios))
        return float(np.mean([np.median(rng.choice(ratios[k], len(ratios[k]))) for k in picked]))

    value = math.exp(np.mean([np.median(each) for each in ratios]))
    low, high = np.exp(np.quantile([resampled() for _ in range(DRAWS)], [0.025, 0.975]))
    old, new = np.median(np.concatenate(pairs), axis=(0, 1))
    return Ratio(value, float(low), float(high), float(old), float(new))


def time_cell(cell: str, asked: argparse.Namespace) -> bool:
    """Print the rows of a cell and its verdict; True unless it is slower."""
    pairs, results = [], ""
    for pair in range(asked.processes):
        rounds, results = rounds_of_pair(cell, bool(pair % 2), asked)
        pairs.append(rounds)
    ratios = {name: ratio_of([rounds[name] for rounds in pairs]) for name in ("wall", "processor")}
    for name, ratio in ratios.items():
        times = f"{1e3 * ratio.old:.2f} | {1e3 * ratio.new:.2f}"
        interval = f"{ratio.value:.3f} | [{ratio.low:.3f}, {ratio.high:.3f}]"
        print(f"| {cell} | {name} | {times} | {interval} | {ratio.verdict} |", flush=True)
    # On a CUDA device the host waits or spins while kernels run, so its processor time says little.
    decisive = ratios["wall" if asked.device == "cuda" else "processor"]
    print(f"{cell}: {decisive.verdict} ({results})", flush=True)
    return decisive.verdict != "slower"


def selected_cells(asked: argparse.Namespace) -> list[str]:
    """Names of the cells that the command line asks for."""
    state = State(__file__, asked.new, ["--serve", "--device", asked.device])
    known: dict[str, bool] = state.ask({})
    state.close()
    patterns = asked.cells or ([] if asked.host else ["small", "wide", "ragged", "plain"])
    names: list[str] = []
    for pattern in [*patterns, *(["host *"] if asked.host else [])]:
        matching = [name for name in known if fnmatch.fnmatchcase(name, pattern)]
        if not matching:
            raise SystemExit(f"no cell is called {pattern!r}; known are {', '.join(known)}")
        without = asked.data is None and pattern not in known
        names += [name for name in matching if name not in names and not (without and known[name])]
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", help="folder with the package of the old state")
    parser.add_argument("--new", default=str(Path(__file__).parent.parent / "src"), help="that of the new state")
    parser.add_argument("--device", default="numpy", choices=["numpy", "cpu", "cuda"])
    parser.add_argument("--cells", nargs="+", help="names of cells, * and ? as in a shell")
    parser.add_argument("--host", action="store_true", help="cells of 10,000 tiny problems, as a list and as arrays")
    parser.add_argument("--data", help="folder with the .npz files of real points")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of two laps of each pair of processes")
    parser.add_argument("--processes", type=int, default=4, help="pairs of processes, one after the other")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(answer_for(asked))
        return
    if asked.old is None:
        parser.error("--old is missing: the source folder of the state to compare with")
    cells = selected_cells(asked)
    print("| cell | time | old, ms | new, ms | new / old | 95 % | |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    good = [time_cell(cell, asked) for cell in cells]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
