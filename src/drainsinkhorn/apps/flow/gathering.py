"""Joins the minibatches of all ranks of a torch.distributed group, and selects each rank's share of the pairs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from drainsinkhorn.apps.flow.problems import check_minibatch
from drainsinkhorn.model.errors import FleetError, ProblemError

if TYPE_CHECKING:
    from drainsinkhorn.fleet.rows import Ranks


class Gathered(NamedTuple):
    """The joined minibatches of all ranks, in the order of the ranks.

    Attributes:
        batch: The entries of the minibatch, each with the rows of all ranks; None for an entry that is missing. There
            are no entries if some rank has no minibatch.
        first: Number of sources of the ranks before this one.
        last: That number plus the number of this rank's sources.
        remarks: The text that each rank sent to all.
    """

    batch: tuple[Any, ...]
    first: int
    last: int
    remarks: list[Any]

    def part_of(self, count: int) -> slice:
        """The part of `count` pairs that is this rank's: as many as its sources if there is a pair for each source."""
        total = len(self.batch[0])
        return slice(count * self.first // total, count * self.last // total)


class _Notice(NamedTuple):
    """What a rank tells the others before they exchange tensors.

    Attributes:
        kinds: Shape and dtype of each entry of its minibatch, None for one that is missing; empty without a minibatch.
        trouble: The error that kept it from reading a minibatch; empty if there was none.
        remark: A text that it sends to all ranks.
    """

    kinds: tuple[tuple[tuple[int, ...], torch.dtype] | None, ...]
    trouble: str = ""
    remark: Any = None


def ranks_of(group: Any) -> Ranks:
    """The ranks of a group, or all ranks for "world"; ProblemError in a worker of a DataLoader, which is no rank."""
    from drainsinkhorn.fleet.rows import Ranks

    if isinstance(group, str) and group != "world":
        raise ProblemError(f'group must be "world" or a group of torch.distributed, got {group!r}')
    if torch.utils.data.get_worker_info() is not None:
        raise ProblemError("group= works in the process of a rank, not in a worker of a DataLoader; use num_workers=0")
    return Ranks(None if isinstance(group, str) else group)


def gather_minibatches(batches: Iterable[Any], group: Any) -> Iterator[Gathered]:
    """Yield the joined minibatches of all ranks until some rank has none left.

    A rank that cannot read its minibatch raises its own error, and all others raise FleetError.
    """
    ranks, source = ranks_of(group), iter(batches)
    for place in itertools.count():
        batch: Any = ()
        error: Exception | None = None
        try:
            for batch in itertools.islice(source, 1):
                check_minibatch(place, batch)
        except Exception as raised:  # noqa: BLE001  raised once the other ranks know
            batch, error = (), raised
        gathered = gather_entries(batch, ranks, f"minibatch {place}", error=error)
        if not gathered.batch:
            return
        yield gathered


def gather_list(batches: Sequence[Any], group: Any) -> list[Gathered]:
    """The joined minibatches of all ranks; ProblemError on all ranks if one has more minibatches than another."""
    counts = ranks_of(group).gather(len(batches))
    if len(set(counts)) > 1:
        raise ProblemError(f"the ranks of the group have {counts} minibatches; pass the same number on every rank")
    return list(gather_minibatches(batches, group))


def gather_entries(
    batch: Sequence[Any], ranks: Ranks, name: str, *, remark: Any = None, error: Exception | None = None
) -> Gathered:
    """Return the entries of all ranks, joined; no entries if some rank has no minibatch.

    Args:
        batch: Tensors of this rank, the first of them its sources; None for one that is missing; empty if the rank has
            no minibatch.
        ranks: The ranks that exchange their entries.
        name: Name of the minibatch in error messages.
        remark: A text that is sent to all ranks.
        error: The exception that kept this rank from reading a minibatch, or None; raised after all ranks know it.
    """
    kinds = tuple(None if entry is None else (tuple(entry.shape), entry.dtype) for entry in batch)
    trouble = "" if error is None else f"{type(error).__name__}: {error}"
    notices = ranks.gather(_Notice(kinds, trouble, remark))
    if error is not None:
        raise error
    for rank, notice in enumerate(notices):
        if notice.trouble:
            raise FleetError(f"rank {rank} of {ranks.size} has failed to read {name}: {notice.trouble}")
    if not all(notice.kinds for notice in notices):
        return Gathered((), 0, 0, [])
    for rank, notice in enumerate(notices):
        _refuse_shapes(notice, notices[0], f"{name} of rank {rank}")
    joined = tuple(None if entry is None else ranks.gather_rows(entry.detach()) for entry in batch)
    sizes = [notice.kinds[0][0][0] for notice in notices if notice.kinds[0] is not None]
    first = sum(sizes[: ranks.rank])
    return Gathered(joined, first, first + sizes[ranks.rank], [notice.remark for notice in notices])


def _refuse_shapes(notice: _Notice, first: _Notice, name: str) -> None:
    """Raise ProblemError if entries of a rank cannot be joined to those of rank 0, or labels do not fit points."""
    shapes = ", ".join("nothing" if kind is None else f"{kind[1]} of shape {kind[0]}" for kind in notice.kinds)
    if any(kind is not None and not kind[0] for kind in notice.kinds):
        raise ProblemError(f"{name} has {shapes}; every entry must have one row for each point")
    # Labels belong to x1, and labels of x0, the fourth entry, to x0.
    for kind, place in zip(notice.kinds, (0, 1, 1, 0), strict=False):
        owner = notice.kinds[place]
        if kind is not None and owner is not None and kind[0][0] != owner[0][0]:
            raise ProblemError(f"{name} has {shapes}; pass one label for each point")
    rows, expected = (
        [None if kind is None else (kind[0][1:], kind[1]) for kind in each.kinds] for each in (notice, first)
    )
    if rows != expected:
        raise ProblemError(
            f"{name} has {shapes}, and rank 0 has other shapes or dtypes; only the number of points may differ"
        )
