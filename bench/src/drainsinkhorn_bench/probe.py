"""One side of `drain bench compare`: solves cases with whichever drainsinkhorn it was started with, on request.

It is run as a script in a process of its own and speaks JSON lines. Of the library it uses `Problem` and `solve` alone,
so that it runs with older commits too; residuals are audited here, in float64 with direct differences.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

import drainsinkhorn as ds

TOL = 1e-3
CASES: dict[str, dict[str, Any]] = {
    "clouds3": {"count": 16, "n": 256, "d": 3, "eps": 0.1, "cuda": {"n": 8192}},
    "clouds3-plain": {
        "count": 16,
        "n": 256,
        "d": 3,
        "eps": 0.1,
        "settings": {"accelerate": "none"},
        "cuda": {"n": 4096},
    },
    "clouds50": {"count": 16, "n": 192, "d": 50, "eps": 0.1, "cuda": {"n": 4096}},
    "unequal": {"count": 24, "n": 200, "d": 2, "eps": 0.05, "unequal": True, "cuda": {"n": 2048}},
    "tiny": {"count": 512, "n": 32, "d": 2, "eps": 0.3, "cuda": {"count": 4096, "n": 128}},
}
"""Generated problems by name: how many, points, dimensions, eps; other values on CUDA."""
LEAST = 0.05
"""Seconds that one measurement takes at least: a case that is faster is solved several times."""


def problems(case: dict[str, Any], device: str) -> list[Any]:
    """Pairs of clouds whose spread grows along the batch, so that depths differ."""
    case = {**case, **(case["cuda"] if device == "cuda" else {})}
    rng = np.random.default_rng(7)
    found = list[Any]()
    for lane in range(case["count"]):
        spread = 0.2 + 0.8 * lane / (case["count"] - 1)
        n, m = (case["n"] - 5 * (lane % 4), case["n"] - 3 * (lane % 5)) if case.get("unequal") else (case["n"],) * 2
        x, y = (spread * rng.normal(size=(size, case["d"])) for size in (n, m))
        y += 0.3
        arrays: list[Any] = [points.astype(np.float32) for points in (x, y)]
        if device == "cuda":
            import torch

            arrays = [torch.tensor(points, device="cuda") for points in arrays]
        found.append(ds.Problem(x=arrays[0], y=arrays[1], eps=case["eps"]))
    return found


def audit(problem: Any, potentials: Any) -> float:
    """The larger L1 residual in float64."""
    x, y, f, g = (_numpy(side) for side in (problem.x, problem.y, *potentials))
    scores = np.add.outer(f, g)
    for k in range(x.shape[1]):
        scores -= np.square(np.subtract.outer(x[:, k], y[:, k]))
    plan = np.exp(scores / problem.eps) / scores.size
    return float(max(abs(plan.sum(1) - 1 / len(x)).sum(), abs(plan.sum(0) - 1 / len(y)).sum()))


def _numpy(array: Any) -> Any:
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array, dtype=np.float64)


class Side:
    """Carries out the requests `gate` and `time` of `compare` with the library of one commit."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._made: dict[str, list[Any]] = {}

    def _solve(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = problems(CASES[name], self._device)
        return ds.solve(self._made[name], tol=TOL, **CASES[name].get("settings", {}))

    def gate(self, name: str) -> dict[str, Any]:
        """Solve once and audit; says how often to solve for one measurement."""
        self._solve(name)
        begun = time.perf_counter()
        results = list(self._solve(name))
        took = time.perf_counter() - begun
        checked = list(enumerate(results))[:: max(1, len(results) // 16)]
        worst = max(audit(self._made[name][place], result.potentials) for place, result in checked)
        return {"residual": worst, "depths": [r.depth for r in results], "loops": max(1, round(LEAST / took))}

    def time(self, name: str, loops: int) -> dict[str, Any]:
        """Seconds of one solve: the mean of so many."""
        begun = self._clock()
        for _ in range(loops):
            self._solve(name)
        return {"seconds": (self._clock() - begun) / loops}

    def _clock(self) -> float:
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()
        return time.perf_counter()


def main() -> None:
    """Read requests from stdin, one JSON list per line, and write a JSON answer to each, until the input ends."""
    # Whatever libraries print goes to the errors; answers have their own way out.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    side = Side(sys.argv[1])

    def say(body: dict[str, Any]) -> None:
        answers.write(json.dumps(body) + "\n")
        answers.flush()

    say({"file": ds.__file__})
    for text in sys.stdin:
        verb, *given = json.loads(text)
        try:
            say(getattr(side, verb)(*given))
        except Exception as error:  # noqa: BLE001  the other side is told, and other cases go on
            say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
