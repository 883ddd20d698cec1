"""What a rank does in the tests of groups: `python flow_ranks.py RANK SIZE FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed

from drainsinkhorn.flow import CoupledBatches, OTPlanSampler, couple_minibatches
from drainsinkhorn.model.errors import DrainError

SETTINGS: Any = {"eps": 0.5, "tol": 1e-6}


def minibatch(rank: int, place: int) -> tuple[Any, ...]:
    """(x0, x1, label, label of x0) of a rank; numbers of points differ between ranks."""
    generator = torch.Generator().manual_seed(10 * rank + place)
    n, m = 12 + 5 * rank, 15 - 3 * rank
    x0, x1 = torch.randn(n, 2, generator=generator), torch.randn(m, 2, generator=generator) + 1
    return x0, x1, torch.arange(m) % 3, torch.arange(n) % 3


def joined(size: int, place: int) -> tuple[Any, ...]:
    """The minibatches of all ranks as one."""
    return tuple(torch.cat(parts) for parts in zip(*[minibatch(rank, place) for rank in range(size)], strict=True))


def stream(rank: int, count: int) -> Iterator[Any]:
    return (minibatch(rank, place)[:3] for place in range(count))


def couplings(rank: int, group: Any) -> dict[str, Any]:
    """What this rank receives from each function that takes a group."""
    found: dict[str, Any] = {}
    local = [minibatch(rank, place) for place in range(3)]
    for k, pairs in enumerate(couple_minibatches([each[:2] for each in local], group=group, seed=3, **SETTINGS)):
        found |= {f"plain {k} 0": pairs.x0, f"plain {k} 1": pairs.x1}
    for k, pairs in enumerate(couple_minibatches(local, group=group, by_class=True, **SETTINGS)):
        found |= {f"class {k} 0": pairs.x0, f"class {k} 1": pairs.x1, f"class {k} label": pairs.label}
    with CoupledBatches(stream(rank, 7), window=2, group=group, **SETTINGS) as coupled:
        for k, pairs in enumerate(coupled):
            # Like the gradients of a training step, in the same group, while a thread couples.
            distributed.all_reduce(torch.ones(3))
            found |= {f"ahead {k} 0": pairs.x0, f"ahead {k} 1": pairs.x1, f"ahead {k} label": pairs.label}
    # The first rank's seed decides.
    np.random.seed(5 + rank)  # noqa: NPY002
    for method in ("sinkhorn", "exact"):
        sampler = OTPlanSampler(method, reg=0.5, group=group)
        x0, x1, label, _ = local[0]
        for part, tensor in zip("01", sampler.sample_plan(x0, x1), strict=True):
            found[f"{method} {part}"] = tensor
        *_, found[f"{method} label"] = sampler.sample_plan_with_labels(x0, x1, None, label)
        found[f"{method} map"] = torch.as_tensor(sampler.get_map(x0, x1))
        found[f"{method} path"] = torch.as_tensor(sampler.sample_trajectory(torch.stack([x0, x0 + 1, x0 - 1], dim=1)))
    numbers = [torch.arange(len(points)) + 100 * rank for points in local[0][:2]]
    *_, i, j = OTPlanSampler("sinkhorn", reg=5.0, group=group).sample_plan_with_labels(
        *local[0][:2], *numbers, replace=False
    )
    found["distinct"] = torch.stack([i, j], dim=1)
    return found


def errors(rank: int, size: int, group: Any) -> Iterator[tuple[str, Any]]:
    """Calls that fail on every rank, although the cause lies with the last one."""
    last = rank == size - 1
    x0, x1, label, _ = minibatch(rank, 0)

    def broken() -> Iterator[Any]:
        yield x0, x1
        if last:
            raise OSError("the disk is gone")
        yield x0, x1

    def read() -> None:
        with CoupledBatches(broken(), group=group, **SETTINGS) as coupled:
            assert len(next(coupled).x0) == len(x0)
            next(coupled)

    def couple(*batches: Any) -> None:
        couple_minibatches(batches, group=group, **SETTINGS)

    yield "count", lambda: couple(*[(x0, x1)] * (2 if last else 3))
    yield "entry", lambda: couple((x0, x1.numpy() if last else x1))
    yield "dtype", lambda: couple((x0, x1.double() if last else x1))
    yield "width", lambda: couple((x0[:, :1] if last else x0, x1))
    yield "label", lambda: couple((x0, x1, label[:-1] if last else label))
    yield "sampler", lambda: OTPlanSampler("sinkhorn", group=group).sample_plan(x0.numpy() if last else x0, x1)
    yield "read", read


def main() -> None:
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    distributed.init_process_group("gloo", f"file://{folder}/meeting", timedelta(seconds=60), size, rank)
    group = "world" if rank == 0 else distributed.group.WORLD
    try:
        said = {}
        for name, call in errors(rank, size, group):
            try:
                call()
            except (DrainError, OSError) as error:
                said[name] = f"{type(error).__name__}: {error}"
        np.savez(folder / f"{rank}.npz", said=np.array(said), **couplings(rank, group))
    finally:
        # Left to the interpreter, its threads may abort the process.
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
