"""What a rank does in the tests of row sharding: `python ranks.py RANK SIZE FOLDER TASK`."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as distributed

import drainsinkhorn as ds
from drainsinkhorn.core.events import Advanced, Event
from drainsinkhorn.fleet.rows import RowShardedBackend
from drainsinkhorn.model.errors import DrainError
from drainsinkhorn.testing import check_backend


def problems() -> list[ds.Problem[Any]]:
    rng = np.random.default_rng(5)
    made = []
    for n, m, d, eps in ((37, 41, 2, 0.2), (3, 20, 2, 0.3), (120, 90, 5, 0.5)):
        x, y = rng.normal(size=(n, d)), 1 + rng.normal(size=(m, d))
        made += [ds.Problem(x=x, y=y, eps=eps), ds.Problem(x=np.float32(x), y=np.float32(y), eps=eps, cost="euclidean")]
    weights = rng.uniform(size=50)
    weights[10:45] = 0.0
    made.append(ds.Problem(x=rng.normal(size=(50, 2)), y=rng.normal(size=(30, 2)), a=weights, eps=0.2))
    made.append(ds.Problem(cost=rng.uniform(size=(40, 50)), eps=0.05))
    made.append(ds.Problem(x=rng.normal(size=(20, 3)), y=rng.normal(size=(20, 3)), eps=0.1, cost="cosine"))
    # Runs into its depth limit, and is rescued.
    made.append(ds.Problem(x=made[0].x, y=made[0].y, eps=1e-3))
    made.append(ds.Problem(x=1e200 * made[0].x, y=made[0].y, eps=1e-300))
    made.append(ds.Problem(x=made[0].x, y=made[0].y, eps=-1.0))
    # Soft marginals, with and without points without weight.
    masses = np.full(made[0].y.shape[0], 0.04)
    made += [ds.Problem(x=made[0].x, y=made[0].y, b=masses, eps=0.2, rho=rho) for rho in (1.0, (np.inf, 2.0), 80.0)]
    made.append(
        ds.Problem(x=rng.normal(size=(50, 2)), y=rng.normal(size=(30, 2)), a=weights, eps=0.2, rho=(0.5, np.inf))
    )
    return made


def solved(folder: Path, rank: int, backend: Any) -> None:
    arrays: dict[str, Any] = {}
    for r in ds.solve(problems(), backend=backend, max_depth=60, width=4, warn=False):
        facts = [*r.residual, r.depth, float(r.rescued), list(ds.Status).index(r.status)]
        arrays[f"{r.ticket} facts"] = facts
        if r.emitted is not None:
            arrays[f"{r.ticket} f"], arrays[f"{r.ticket} g"] = r.potentials
    np.savez(folder / f"{rank}.npz", **arrays)


def deserts(event: Event) -> None:
    if isinstance(event, Advanced):
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    rank, size, folder, task = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    meeting = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", meeting, timedelta(seconds=30), size, rank)
    last = rank == size - 1
    try:
        if task in ("dense", "streaming"):
            solved(folder, rank, RowShardedBackend(kernels=task))
        elif task == "contract":
            check_backend(RowShardedBackend(), shape=(9, 11, 2))
        elif task == "desert":
            ds.solve(problems(), backend=RowShardedBackend(), observe=deserts if last else lambda event: None)
        elif task == "differ":
            ds.solve(problems()[last:], backend=RowShardedBackend())
        elif task == "full":
            backend = Full() if last else RowShardedBackend()
            (folder / f"{rank}.txt").write_text(ds.solve(problems()[:2], backend=backend, warn=False)[0].message)
        elif task == "short":
            ds.solve(problems()[:2], backend=Short() if last else RowShardedBackend())
    except DrainError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    finally:
        # Left to the interpreter, its threads may abort the process.
        distributed.destroy_process_group()


class Full(RowShardedBackend):
    """A rank that has no memory left."""

    def pack(self, problems: Any) -> Any:
        from drainsinkhorn.fleet.rows import Ranks, RowShardedPack

        def make(problem: Any) -> Any:
            raise MemoryError("nothing left")

        return RowShardedPack(problems, make, Ranks(), momentum=False)


class Short(RowShardedBackend):
    """A rank whose memory runs out in the midst of a cycle."""

    def pack(self, problems: Any) -> Any:
        pack = super().pack(problems)

        def cycle() -> None:
            raise MemoryError("nothing left")

        pack._lanes[0].cycle = cycle  # type: ignore[method-assign]
        return pack


if __name__ == "__main__":
    main()
