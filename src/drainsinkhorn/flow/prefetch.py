"""Minibatches coupled ahead of training: a window of them is one batch of lanes, prepared by a thread of its own."""

from __future__ import annotations

import itertools
import queue
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from drainsinkhorn.api import solve
from drainsinkhorn.consumers import sample
from drainsinkhorn.core.audit import is_count
from drainsinkhorn.core.errors import OptionsError, ProblemError
from drainsinkhorn.core.problem import Problem
from drainsinkhorn.core.result import Status
from drainsinkhorn.flow.problems import problem_of

Tensor = torch.Tensor


class Pairs(NamedTuple):
    """Pairs drawn from the coupling of a minibatch.

    Attributes:
        x0: Sources.
        x1: Targets.
        label: Labels of the targets; None if there are none.
        converged: The share of problems behind them that converged.
    """

    x0: Tensor
    x1: Tensor
    label: Tensor | None
    converged: float


class _Part(NamedTuple):
    """One problem of a minibatch: places of its sources and targets, None for all of them."""

    batch: int
    rows: Any
    cols: Any
    size: int


def couple_minibatches(
    batches: Sequence[Sequence[Any]],
    *,
    eps: float | Callable[[Tensor, Tensor], float],
    by_class: bool = False,
    seed: int = 0,
    tol: float | None = None,
    warn: bool = True,
    **settings: Any,
) -> list[Pairs]:
    """Couple minibatches `(x0, x1)` or `(x0, x1, label)` as one batch of lanes and draw as many pairs as x0 has points.

    Args:
        batches: Tensors (n, ...) and (m, ...); labels (m,).
        eps: Entropic strength in units of the squared distance, or a function of (x0, x1).
        by_class: Couple within classes: targets of each label are coupled to their share of the sources (drawn at
            random; labels of sources, a fourth entry, decide if they are given), each class a lane of its own size.
        seed: Together with the place of a minibatch it decides the draw.
        tol: Bound on the larger L1 marginal residual.
        warn: Warn if problems did not converge; their last states are used.
        **settings: Keywords of `solve`.

    Examples:
        >>> batches = [(torch.randn(64, 2), torch.randn(64, 2) + 3) for _ in range(8)]
        >>> pairs = couple_minibatches(batches, eps=0.5)
        >>> len(pairs), tuple(pairs[0].x1.shape)
        (8, (64, 2))
    """
    parts = [part for k, batch in enumerate(batches) for part in _parts(k, batch, by_class, seed)]
    problems: list[Problem[Any]] = []
    for part in parts:
        x0, x1 = (
            points if places is None else points[places]
            for points, places in zip(batches[part.batch][:2], (part.rows, part.cols), strict=True)
        )
        problems.append(problem_of(x0, x1, eps(x0, x1) if callable(eps) else eps))
    solution = solve(problems, tol=tol, **settings)
    for part, result in zip(parts, solution, strict=True):
        if result.status is Status.INVALID:
            raise ProblemError(f"minibatch {part.batch} cannot be coupled: {result.message}")
    if warn and not solution.converged:
        failed = sum(count for status, count in solution.counts.items() if status is not Status.CONVERGED)
        worst = max(result.residual.worst for result in solution)
        warnings.warn(
            f"{failed} of {len(solution)} couplings did not converge (residual up to {worst:.2g}); their last states "
            "are used; raise eps or max_depth",
            RuntimeWarning,
            stacklevel=2,
        )
    drawn = _draw(parts, solution, seed)
    found: list[list[Any]] = [[] for _ in batches]
    for part, pair, result in zip(parts, drawn, solution, strict=True):
        found[part.batch].append((part, *pair, result.converged))
    return [_gather(batch, some) for batch, some in zip(batches, found, strict=True)]


def _draw(parts: Sequence[_Part], solution: Any, seed: int) -> list[tuple[Any, Any]]:
    """Pairs of every problem; those of equal number together."""
    found: list[Any] = [None] * len(parts)
    for count in {part.size for part in parts}:
        some = [k for k, part in enumerate(parts) if part.size == count]
        for k, pair in zip(some, sample([solution[k] for k in some], count, seed=seed), strict=True):
            found[k] = pair
    return found


def _gather(batch: Sequence[Any], drawn: Sequence[Any]) -> Pairs:
    """The pairs of all problems of a minibatch, mixed: classes must not come one after another."""
    i = torch.cat([i if part.rows is None else part.rows[i] for part, i, _, _ in drawn])
    j = torch.cat([j if part.cols is None else part.cols[j] for part, _, j, _ in drawn])
    if len(drawn) > 1:
        mixed = torch.from_numpy(np.random.default_rng(len(i)).permutation(len(i))).to(i.device)
        i, j = i[mixed], j[mixed]
    label = batch[2] if len(batch) > 2 else None
    share = float(np.mean([converged for *_, converged in drawn]))
    return Pairs(batch[0][i], batch[1][j], None if label is None else label[j], share)


def _shown(batch: Any) -> str:
    return f"{len(batch)} entries" if isinstance(batch, (tuple, list)) else type(batch).__name__


def _parts(place: int, batch: Any, by_class: bool, seed: int) -> Iterator[_Part]:
    if not isinstance(batch, (tuple, list)) or not 2 <= len(batch) <= 4:
        raise ProblemError(
            f"minibatch {place} must be (x0, x1), (x0, x1, label) or (x0, x1, label, label of x0), got {_shown(batch)}"
        )
    count = len(batch[0])
    if not by_class:
        yield _Part(place, None, None, count)
        return
    if len(batch) < 3 or batch[2] is None:
        raise ProblemError(f"minibatch {place} has no labels; by_class needs (x0, x1, label)")
    target = batch[2]
    source = batch[3] if len(batch) > 3 else _shares(target, count, (seed, place)).to(target.device)
    names = [name for name in target.unique().tolist() if bool((source == name).any())]
    if not names:
        raise ProblemError(f"minibatch {place} has no class on both sides, so by_class leaves nothing to couple")
    for name in names:
        rows, cols = (source == name).nonzero()[:, 0], (target == name).nonzero()[:, 0]
        yield _Part(place, rows, cols, len(rows))


def _shares(target: Tensor, count: int, seed: Any) -> Tensor:
    """Labels for `count` sources in the proportions of the targets, in random order."""
    names, sizes = target.cpu().unique(return_counts=True)
    ideal = sizes.double().numpy() * count / len(target)
    shares = np.floor(ideal).astype(int)
    # What rounding left over goes to the largest remainders.
    shares[np.argsort(shares - ideal, kind="stable")[: count - shares.sum()]] += 1
    labels = names.numpy().repeat(shares)
    return torch.from_numpy(np.random.default_rng(seed).permutation(labels))


class CoupledBatches(Iterator[Pairs]):
    """Coupled minibatches in their order, a window of them prepared by a thread while the last one is trained on.

    Args:
        batches: Any iterable of `(x0, x1)` or `(x0, x1, label)`; it may be endless.
        window: Minibatches that are solved together: as many lanes drain and are refilled.
        batch_size: Cut the pairs of a minibatch, in their random order, into training batches of this size; None leaves
            them whole. So the coupled batch may be larger than the training batch.
        ahead: Windows that may wait, beside the one in work.
        eps, by_class, seed, tol, settings: As for `couple_minibatches`.

    Errors of the thread, those of `batches` included, are raised by `next` after what was coupled before. `close` stops
    the thread; so does leaving a `with` block.

    Examples:
        >>> batches = ((torch.randn(64, 2), torch.randn(64, 2) + 3) for _ in range(8))
        >>> with CoupledBatches(batches, eps=0.5, window=4, batch_size=32) as coupled:
        ...     sum(1 for pairs in coupled)
        16
    """

    def __init__(
        self,
        batches: Iterable[Any],
        *,
        eps: float | Callable[[Tensor, Tensor], float],
        window: int = 32,
        batch_size: int | None = None,
        ahead: int = 1,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        for name, value in (
            ("window", window),
            ("ahead", ahead),
            ("batch_size", 1 if batch_size is None else batch_size),
        ):
            if not is_count(value):
                raise OptionsError(f"{name} must be an integer of at least 1, got {value!r}")
        self._ready: queue.Queue[Any] = queue.Queue(maxsize=ahead)
        self._closed = threading.Event()
        self._waiting: Iterator[Pairs] = iter(())
        self._size = batch_size
        self._ended = False
        self._stream: torch.cuda.Stream | None = None
        settings = {"eps": eps, **settings}
        self._thread = threading.Thread(
            target=self._work, args=(iter(batches), window, seed, settings), name="coupled batches", daemon=True
        )
        self._thread.start()

    def _work(self, batches: Iterator[Any], window: int, seed: int, settings: dict[str, Any]) -> None:
        """Couple window after window until the minibatches end, an error comes, or somebody closes."""
        for number in itertools.count():
            if self._closed.is_set():
                return
            some: list[Any] = []
            error: BaseException | None = None
            try:
                some.extend(itertools.islice(batches, window))
            except BaseException as raised:  # noqa: BLE001  handed to whoever asks for the next batch
                error = raised
            try:
                coupled = self._couple(some, seed + number, settings)
            except BaseException as raised:  # noqa: BLE001  likewise
                coupled, error = None, raised
            if coupled is not None and some and not self._put(coupled):
                return
            if error is not None or len(some) < window:
                self._put(error)
                return

    def _couple(self, some: list[Any], seed: int, settings: dict[str, Any]) -> list[Pairs]:
        """On a GPU on a stream of its own, so that training goes on; what comes back is finished."""
        if not some:
            return []
        # CUDA is left alone where nothing lies there: in a fork, as a DataLoader makes them, it could not begin.
        first = some[0] if isinstance(some[0], (tuple, list)) else ()
        device = next((part.device for part in first if getattr(part, "is_cuda", False)), None)
        if device is None:
            return couple_minibatches(some, seed=seed, **settings)
        self._stream = self._stream or torch.cuda.Stream(device)
        # What the default stream still writes to these tensors must be there first.
        self._stream.wait_stream(torch.cuda.default_stream(device))
        with torch.cuda.stream(self._stream):
            pairs = couple_minibatches(some, seed=seed, **settings)
            self._stream.synchronize()
        return pairs

    def _put(self, item: Any) -> bool:
        while not self._closed.is_set():
            try:
                self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def __iter__(self) -> CoupledBatches:
        """Itself."""
        return self

    def __next__(self) -> Pairs:
        """The next training batch."""
        while True:
            for pairs in self._waiting:
                return pairs
            if self._ended or self._closed.is_set():
                raise StopIteration
            try:
                item = self._ready.get(timeout=0.1)
            except queue.Empty:
                continue
            if item is None or isinstance(item, BaseException):
                self._ended = True
                if item is not None:
                    raise item
                continue
            for tensor in (tensor for pairs in item for tensor in pairs[:3]):
                if tensor is not None and tensor.is_cuda:
                    # Its memory belongs to the other stream, which must not reuse it before this one is done.
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))
            self._waiting = itertools.chain.from_iterable(map(self._cut, item))

    def _cut(self, pairs: Pairs) -> Iterator[Pairs]:
        size = self._size or len(pairs.x0)
        for first in range(0, len(pairs.x0) - size + 1, size):
            part = slice(first, first + size)
            label = None if pairs.label is None else pairs.label[part]
            yield Pairs(pairs.x0[part], pairs.x1[part], label, pairs.converged)

    def close(self) -> None:
        """Stop the thread and wait for it; what it has coupled is given up."""
        self._closed.set()
        self._waiting = iter(())
        self._thread.join()

    def __enter__(self) -> CoupledBatches:
        """Itself; closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class CouplingDataset(torch.utils.data.IterableDataset[Pairs]):
    """Coupled training batches as a dataset: pass it to a DataLoader with `batch_size=None`.

    Workers of a DataLoader share the minibatches: worker k of w takes every w-th, from the k-th on.

    Args:
        source: Makes the minibatches of an epoch.
        **settings: As for `CoupledBatches`.

    Examples:
        >>> def source():
        ...     return ((torch.randn(64, 2), torch.randn(64, 2) + 3) for _ in range(8))
        >>> loader = torch.utils.data.DataLoader(CouplingDataset(source, eps=0.5, window=4), batch_size=None)
        >>> sum(1 for x0, x1, label, converged in loader)
        8
    """

    def __init__(self, source: Callable[[], Iterable[Any]], **settings: Any) -> None:
        self.source = source
        self.settings = settings

    def __iter__(self) -> Iterator[Pairs]:
        """One epoch."""
        worker = torch.utils.data.get_worker_info()
        batches: Iterable[Any] = self.source()
        settings = dict(self.settings)
        if worker is not None:
            batches = itertools.islice(batches, worker.id, None, worker.num_workers)
            settings["seed"] = settings.get("seed", 0) + 2**32 * (worker.id + 1)
        with CoupledBatches(batches, **settings) as coupled:
            yield from coupled
