"""Minibatches coupled ahead of training: a thread couples a window of them as one batch of lanes."""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from drainsinkhorn.apps.flow.minibatches import Pairs, couple_minibatches
from drainsinkhorn.core.audit import is_count
from drainsinkhorn.model.errors import OptionsError, ProblemError

Tensor = torch.Tensor


def _cut_out(pairs: Pairs, part: slice) -> Pairs:
    """The pairs at these places."""
    return Pairs(pairs.x0[part], pairs.x1[part], None if pairs.label is None else pairs.label[part], pairs.converged)


def _join(first: Pairs, second: Pairs) -> Pairs:
    """The pairs of two minibatches, one after the other; with labels if both have labels."""
    label = None if first.label is None or second.label is None else torch.cat([first.label, second.label])
    sizes = len(first.x0), len(second.x0)
    share = (sizes[0] * first.converged + sizes[1] * second.converged) / max(sum(sizes), 1)
    return Pairs(torch.cat([first.x0, second.x0]), torch.cat([first.x1, second.x1]), label, share)


def window_seed(seeds: Sequence[int], number: int) -> int:
    """The seed of a window; draws of windows with neighbouring seeds, epochs or workers are independent."""
    return int(np.random.SeedSequence((*seeds, number)).generate_state(1, np.uint64)[0])


class _Pump:
    """The thread of a CoupledBatches. It holds no reference to that object, so that the object can be forgotten.

    Attributes:
        ready: Coupled windows in order; the last entry is None, or the error that ended the thread.
        closed: Set when no further window is needed.
        thread: The thread; the owner starts it.
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
        """Couple window after window until the minibatches end, an error occurs, or `closed` is set."""
        for number in itertools.count():
            if self.closed.is_set():
                return
            read: list[Any] = []
            error: BaseException | None = None
            try:
                read.extend(itertools.islice(batches, window))
            except BaseException as raised:  # noqa: BLE001  `next` raises it in the caller's thread
                error = raised
            try:
                coupled = self._couple(read, window_seed(seeds, number), settings)
            except BaseException as raised:  # noqa: BLE001  `next` raises it in the caller's thread
                coupled, error = None, raised
            if coupled is not None and read and not self._put(coupled):
                return
            if error is not None or len(read) < window:
                self._put(error)
                return

    def _couple(self, batches: list[Any], seed: int, settings: dict[str, Any]) -> list[Pairs]:
        """Couple minibatches and wait for the result; on a GPU in a stream of its own, beside that of the training."""
        if not batches:
            return []
        # CUDA is not initialised unless tensors lie there: in a process that a DataLoader forked it would fail.
        first = batches[0] if isinstance(batches[0], (tuple, list)) else ()
        device = next((part.device for part in first if getattr(part, "is_cuda", False)), None)
        if device is None:
            return couple_minibatches(batches, seed=seed, **settings)
        self._stream = self._stream or torch.cuda.Stream(device)
        # The default stream may still be writing to these tensors.
        self._stream.wait_stream(torch.cuda.default_stream(device))
        with torch.cuda.stream(self._stream):
            pairs = couple_minibatches(batches, seed=seed, **settings)
            self._stream.synchronize()
        return pairs

    def _put(self, item: Any) -> bool:
        """Append to `ready`, waiting for room; False if `closed` was set first."""
        while not self.closed.is_set():
            try:
                self.ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False


_pumps: weakref.WeakSet[_Pump] = weakref.WeakSet()
EXIT_SECONDS = 60.0
"""Longest time that the interpreter waits at its end for a thread that is coupling a window, in seconds."""


@atexit.register
def _stop_pumps() -> None:
    """Stop all threads: one that still runs when the interpreter ends would abort it."""
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
        window: Number of minibatches that are solved together, as one batch of lanes.
        batch_size: Cut the pairs of minibatches, in their random order, into training batches of this size; None: a
            training batch is a minibatch. A training batch may be larger or smaller than a minibatch: pairs that remain
            of a minibatch come first in the next training batch. Pairs that remain of the last minibatch are dropped.
        ahead: Number of coupled windows that may wait, beside the one being coupled.
        seed: One number or several. The seed and the number of a window decide its draws.
        eps: Entropic strength, as for `couple_minibatches`.
        **settings: Other keywords of `couple_minibatches`.

    `next` raises errors of the thread, including those of `batches`, after it has returned all pairs coupled before.
    `close` stops the thread; so do the end of a `with` block, the deletion of this object, and the end of the
    interpreter.

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
        self._has_yielded = False
        self._ended = False
        seeds = tuple(seed) if isinstance(seed, Sequence) else (seed, 0, 0, 0)
        self._pump = _Pump(iter(batches), window, ahead, seeds, {"eps": eps, **settings})
        # The thread does not refer to this object, so that deleting the object ends the thread.
        weakref.finalize(self, self._pump.closed.set)
        self._pump.thread.start()

    def __iter__(self) -> CoupledBatches:
        """Return this object."""
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
                    # The memory belongs to the thread's stream, which must not reuse it before this stream has read it.
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))
            self._waiting = itertools.chain.from_iterable(map(self._cut, item))

    def _cut(self, pairs: Pairs) -> Iterator[Pairs]:
        """Training batches of the remaining pairs of the last minibatch and these; pairs that remain are kept."""
        if self._size is None:
            yield pairs
            return
        pairs, self._rest = pairs if self._rest is None else _join(self._rest, pairs), None
        end = len(pairs.x0) - len(pairs.x0) % self._size
        for first in range(0, end, self._size):
            self._has_yielded = True
            yield _cut_out(pairs, slice(first, first + self._size))
        if end < len(pairs.x0):
            self._rest = _cut_out(pairs, slice(end, None))

    def _refuse_too_few(self) -> None:
        """Raise ProblemError if all minibatches together had fewer pairs than one training batch."""
        if self._rest is not None and not self._has_yielded:
            raise ProblemError(
                f"batch_size is {self._size}, but all minibatches together gave {len(self._rest.x0)} pairs; "
                "lower batch_size or pass more minibatches"
            )

    def close(self) -> None:
        """Stop the thread and wait for its end; pairs that were coupled and not read are dropped."""
        self._pump.closed.set()
        self._waiting = iter(())
        self._pump.thread.join()

    def __enter__(self) -> CoupledBatches:
        """Return this object, which the end of the block closes."""
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
        """Yield the coupled pairs of one epoch."""
        worker = torch.utils.data.get_worker_info()
        batches: Iterable[Any] = self.source()
        # A worker may be started anew for every epoch, and then only the loader's own seed differs between epochs.
        place = (0, 0) if worker is None else (worker.id + 1, worker.seed - worker.id)
        settings = {**self.settings, "seed": (self.settings.get("seed", 0), self._epoch, *place)}
        self._epoch += 1
        if worker is not None:
            batches = itertools.islice(batches, worker.id, None, worker.num_workers)
        with CoupledBatches(batches, **settings) as coupled:
            yield from coupled
