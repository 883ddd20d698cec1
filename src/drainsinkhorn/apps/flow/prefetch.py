"""Minibatches coupled ahead of training: a window of them is one batch of lanes, prepared by a thread of its own."""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from drainsinkhorn.apps.flow.problems import problems_of, refuse_other_than_tensors
from drainsinkhorn.core.audit import is_count
from drainsinkhorn.model.errors import ConvergenceWarning, OptionsError, ProblemError
from drainsinkhorn.model.errors import warn as issue
from drainsinkhorn.model.status import Status
from drainsinkhorn.plans.consumers import sample
from drainsinkhorn.run.solve import solve

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
            Sources whose class has no targets are left out, with a warning.
        seed: Together with the place of a minibatch it decides the draw.
        tol: Bound on the larger L1 marginal residual.
        warn: Warn if problems did not converge (their last states are used), or sources were left out.
        **settings: Keywords of `solve`.

    Examples:
        >>> batches = [(torch.randn(64, 2), torch.randn(64, 2) + 3) for _ in range(8)]
        >>> pairs = couple_minibatches(batches, eps=0.5)
        >>> len(pairs), tuple(pairs[0].x1.shape)
        (8, (64, 2))
    """
    parts = [part for k, batch in enumerate(batches) for part in _parts(k, batch, by_class, seed)]
    pairs = [
        tuple(
            points if places is None else points[places]
            for points, places in zip(batches[part.batch][:2], (part.rows, part.cols), strict=True)
        )
        for part in parts
    ]
    strengths = [eps(*pair) if callable(eps) else eps for pair in pairs]
    problems = problems_of(pairs, strengths, backend=settings.get("backend"))
    solution = solve(problems, tol=tol, warn=False, **settings)
    for part, result in zip(parts, solution, strict=True):
        if result.status is Status.INVALID:
            raise ProblemError(f"minibatch {part.batch} cannot be coupled: {result.message}")
    if warn and not solution.converged:
        failed = sum(count for status, count in solution.counts.items() if status is not Status.CONVERGED)
        worst = max(result.residual.worst for result in solution)
        issue(
            ConvergenceWarning(
                f"{failed} of {len(solution)} couplings did not converge (residual up to {worst:.2g}); their last "
                "states are used; raise eps or max_depth",
                solution,
            )
        )
    if warn and by_class:
        _warn_of_left_out(batches, parts)
    drawn = _draw(parts, solution, seed)
    found: list[list[Any]] = [[] for _ in batches]
    for part, pair, result in zip(parts, drawn, solution, strict=True):
        found[part.batch].append((part, *pair, result.converged))
    return [_gather(batch, some) for batch, some in zip(batches, found, strict=True)]


def _warn_of_left_out(batches: Sequence[Any], parts: Sequence[_Part]) -> None:
    """Sources whose class has no targets cannot be coupled within it."""
    left = sum(len(batch[0]) for batch in batches) - sum(part.size for part in parts)
    if left:
        warnings.warn(
            f"{left} sources are of classes that have no targets in their minibatch and were left out; "
            "pass larger minibatches, or leave out the labels of sources",
            RuntimeWarning,
            stacklevel=3,
        )


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
    rows = [i if part.rows is None else part.rows[i] for part, i, _, _ in drawn]
    cols = [j if part.cols is None else part.cols[j] for part, _, j, _ in drawn]
    (i, *_), (j, *_) = rows, cols
    if len(drawn) > 1:
        i, j = torch.cat(rows), torch.cat(cols)
        mixed = torch.from_numpy(np.random.default_rng(len(i)).permutation(len(i))).to(i.device)
        i, j = i[mixed], j[mixed]
    label = batch[2] if len(batch) > 2 else None
    share = sum(converged for *_, converged in drawn) / len(drawn)
    x0, x1 = batch[0].index_select(0, i), batch[1].index_select(0, j)
    return Pairs(x0, x1, None if label is None else label[j], share)


def _shown(batch: Any) -> str:
    return f"{len(batch)} entries" if isinstance(batch, (tuple, list)) else type(batch).__name__


def _parts(place: int, batch: Any, by_class: bool, seed: int) -> Iterator[_Part]:
    if not isinstance(batch, (tuple, list)) or not 2 <= len(batch) <= 4:
        raise ProblemError(
            f"minibatch {place} must be (x0, x1), (x0, x1, label) or (x0, x1, label, label of x0), got {_shown(batch)}"
        )
    names = ("x0", "x1", "label", "label of x0")
    some = {
        f"{name} of minibatch {place}": entry for name, entry in zip(names, batch, strict=False) if entry is not None
    }
    refuse_other_than_tensors(**some)
    count = len(batch[0])
    if not by_class:
        yield _Part(place, None, None, count)
        return
    if len(batch) < 3 or batch[2] is None:
        raise ProblemError(f"minibatch {place} has no labels; by_class needs (x0, x1, label)")
    target = batch[2]
    given = batch[3] if len(batch) > 3 else None
    source = _shares(target, count, (seed, place)) if given is None else given
    source = source.to(target.device)
    for what, labels, size in (("targets", target, len(batch[1])), ("sources", source, count)):
        if labels.shape != (size,):
            raise ProblemError(
                f"minibatch {place} has labels of shape {tuple(labels.shape)} for {size} {what}; pass one for each"
            )
    if not bool(torch.isin(source, target).any()):
        raise ProblemError(
            f"minibatch {place} has sources of the classes {source.unique().tolist()} and targets of "
            f"{target.unique().tolist()}, which have none in common; by_class couples within classes"
        )
    for name in target[torch.isin(target, source)].unique().tolist():
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


def _cut_out(pairs: Pairs, part: slice) -> Pairs:
    return Pairs(pairs.x0[part], pairs.x1[part], None if pairs.label is None else pairs.label[part], pairs.converged)


def _joined(first: Pairs, second: Pairs) -> Pairs:
    """Pairs of two minibatches; labelled if both are."""
    label = None if first.label is None or second.label is None else torch.cat([first.label, second.label])
    sizes = len(first.x0), len(second.x0)
    share = (sizes[0] * first.converged + sizes[1] * second.converged) / max(sum(sizes), 1)
    return Pairs(torch.cat([first.x0, second.x0]), torch.cat([first.x1, second.x1]), label, share)


def window_seed(seeds: Sequence[int], number: int) -> int:
    """The seed of a window: windows of neighbouring seeds, epochs and workers have nothing in common."""
    return int(np.random.SeedSequence((*seeds, number)).generate_state(1, np.uint64)[0])


class _Pump:
    """The thread of a CoupledBatches and what it needs, and no more.

    Attributes:
        ready: Coupled windows; last None, or the error that ended it.
        closed: Set when nobody wants more.
        thread: Not yet started.
    """

    def __init__(
        self, batches: Iterator[Any], window: int, ahead: int, seeds: Sequence[int], settings: dict[str, Any]
    ) -> None:
        self.ready: queue.Queue[Any] = queue.Queue(maxsize=ahead)
        self.closed = threading.Event()
        self._stream: torch.cuda.Stream | None = None
        self.thread = threading.Thread(
            target=self._work, args=(batches, window, seeds, settings), name="coupled batches", daemon=True
        )
        _pumps.add(self)

    def _work(self, batches: Iterator[Any], window: int, seeds: Sequence[int], settings: dict[str, Any]) -> None:
        """Couple window after window until the minibatches end, an error comes, or somebody closes."""
        for number in itertools.count():
            if self.closed.is_set():
                return
            some: list[Any] = []
            error: BaseException | None = None
            try:
                some.extend(itertools.islice(batches, window))
            except BaseException as raised:  # noqa: BLE001  handed to whoever asks for the next batch
                error = raised
            try:
                coupled = self._couple(some, window_seed(seeds, number), settings)
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
        while not self.closed.is_set():
            try:
                self.ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False


_pumps: weakref.WeakSet[_Pump] = weakref.WeakSet()
EXIT_SECONDS = 60.0
"""How long the interpreter waits at its end for a thread that is in the midst of a window."""


@atexit.register
def _stop_pumps() -> None:
    """Threads that are still at work when the interpreter ends would abort it."""
    pumps = list(_pumps)
    for pump in pumps:
        pump.closed.set()
    for pump in pumps:
        if pump.thread.is_alive():
            pump.thread.join(EXIT_SECONDS)


class CoupledBatches(Iterator[Pairs]):
    """Coupled minibatches in their order, a window of them prepared by a thread while the last one is trained on.

    Args:
        batches: Any iterable of `(x0, x1)` or `(x0, x1, label)`; it may be endless.
        window: Minibatches that are solved together: as many lanes drain and are refilled.
        batch_size: Cut the pairs of minibatches, in their random order, into training batches of this size; None leaves
            them whole. So the coupled batch may be larger than the training batch, or smaller: what a minibatch leaves
            goes first into the next training batch, and only what the last one leaves is dropped.
        ahead: Windows that may wait, beside the one in work.
        seed: A number, or several; together with the number of a window it decides its draws.
        eps, by_class, tol, settings: As for `couple_minibatches`.

    Errors of the thread, those of `batches` included, are raised by `next` after what was coupled before. `close` stops
    the thread; so does leaving a `with` block, forgetting this object, and the end of the interpreter.

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
        seed: int | Sequence[int] = 0,
        **settings: Any,
    ) -> None:
        for name, value in (
            ("window", window),
            ("ahead", ahead),
            ("batch_size", 1 if batch_size is None else batch_size),
        ):
            if not is_count(value):
                raise OptionsError(f"{name} must be an integer of at least 1, got {value!r}")
        self._waiting: Iterator[Pairs] = iter(())
        self._size = batch_size
        self._rest: Pairs | None = None
        self._given = False
        self._ended = False
        seeds = tuple(seed) if isinstance(seed, Sequence) else (seed, 0, 0, 0)
        self._pump = _Pump(iter(batches), window, ahead, seeds, {"eps": eps, **settings})
        # The thread does not hold this object, so that it ends when nobody can ask for more.
        weakref.finalize(self, self._pump.closed.set)
        self._pump.thread.start()

    def __iter__(self) -> CoupledBatches:
        """Itself."""
        return self

    def __next__(self) -> Pairs:
        """The next training batch."""
        while True:
            for pairs in self._waiting:
                return pairs
            if self._ended or self._pump.closed.is_set():
                raise StopIteration
            try:
                item = self._pump.ready.get(timeout=0.1)
            except queue.Empty:
                continue
            if item is None or isinstance(item, BaseException):
                self._ended = True
                self._pump.thread.join()
                if item is not None:
                    raise item
                self._refuse_too_few()
                continue
            for tensor in (tensor for pairs in item for tensor in pairs[:3]):
                if tensor is not None and tensor.is_cuda:
                    # Its memory belongs to the other stream, which must not reuse it before this one is done.
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))
            self._waiting = itertools.chain.from_iterable(map(self._cut, item))

    def _cut(self, pairs: Pairs) -> Iterator[Pairs]:
        """Training batches of these pairs, after what the last minibatch left; what these leave waits for the next."""
        if self._size is None:
            yield pairs
            return
        pairs, self._rest = pairs if self._rest is None else _joined(self._rest, pairs), None
        whole = len(pairs.x0) - len(pairs.x0) % self._size
        for first in range(0, whole, self._size):
            self._given = True
            yield _cut_out(pairs, slice(first, first + self._size))
        if whole < len(pairs.x0):
            self._rest = _cut_out(pairs, slice(whole, None))

    def _refuse_too_few(self) -> None:
        if self._rest is not None and not self._given:
            raise ProblemError(
                f"batch_size is {self._size}, but all minibatches together gave {len(self._rest.x0)} pairs; "
                "lower batch_size or pass more minibatches"
            )

    def close(self) -> None:
        """Stop the thread and wait for it; what it has coupled is given up."""
        self._pump.closed.set()
        self._waiting = iter(())
        self._pump.thread.join()

    def __enter__(self) -> CoupledBatches:
        """Itself; closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class CouplingDataset(torch.utils.data.IterableDataset[Pairs]):
    """Coupled training batches as a dataset: pass it to a DataLoader with `batch_size=None`.

    Workers of a DataLoader share the minibatches: worker k of w takes every w-th, from the k-th on. Every epoch has
    draws of its own; in workers they depend on the seed that the DataLoader draws too, so on `torch.manual_seed`.

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
        self._epoch = 0

    def __iter__(self) -> Iterator[Pairs]:
        """One epoch."""
        worker = torch.utils.data.get_worker_info()
        batches: Iterable[Any] = self.source()
        # A worker may be made anew for every epoch, and then only the loader's own seed tells epochs apart.
        place = (0, 0) if worker is None else (worker.id + 1, worker.seed - worker.id)
        settings = {**self.settings, "seed": (self.settings.get("seed", 0), self._epoch, *place)}
        self._epoch += 1
        if worker is not None:
            batches = itertools.islice(batches, worker.id, None, worker.num_workers)
        with CoupledBatches(batches, **settings) as coupled:
            yield from coupled
