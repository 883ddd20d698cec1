"""Minibatches coupled ahead of training: the caller's thread reads them, another couples a window of them as one batch.

The caller's thread reads, a few minibatches at each step, so that everything that reading draws from global generators
(torch's, NumPy's) comes at the same place of the program in every run. The other thread draws from seeds of its own.
"""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from drainsinkhorn.apps.flow.gathering import Gathered, gather_minibatches
from drainsinkhorn.apps.flow.minibatches import Pairs, couple_minibatches, cut_out
from drainsinkhorn.core.audit import is_count
from drainsinkhorn.core.options import check_settings
from drainsinkhorn.model.eps import Eps
from drainsinkhorn.model.errors import OptionsError, ProblemError

Tensor = torch.Tensor


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
        ready: Coupled windows in order; an exception if one could not be coupled, and then nothing more.
        closed: Set when no further window is needed.
        thread: The thread, which starts with the first window.
    """

    def __init__(self, seeds: Sequence[int], settings: dict[str, Any]) -> None:
        self.ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.closed = threading.Event()
        # Windows to be coupled, each with the CUDA event after which its tensors are complete; None ends the thread.
        self._windows: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stream: torch.cuda.Stream | None = None
        self.thread = threading.Thread(target=self._work, args=(seeds, settings), name="coupled batches", daemon=True)
        _pumps.add(self)

    def submit(self, window: list[Any]) -> None:
        """Let the thread couple a window."""
        # CUDA is not initialised unless tensors lie there: in a process that a DataLoader forked it would fail.
        batch = window[0].batch if isinstance(window[0], Gathered) else window[0]
        parts = batch if isinstance(batch, (tuple, list)) else ()
        device = next((part.device for part in parts if getattr(part, "is_cuda", False)), None)
        written = None if device is None else torch.cuda.current_stream(device).record_event()
        self._windows.put((window, device, written))
        if self.thread.ident is None:
            self.thread.start()

    def stop(self) -> None:
        """Let the thread end after the window that it is coupling; does not wait for it."""
        self.closed.set()
        self._windows.put(None)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the thread, if it was started."""
        if self.thread.ident is not None:
            self.thread.join(timeout)

    def _work(self, seeds: Sequence[int], settings: dict[str, Any]) -> None:
        """Couple window after window until `stop`, or until one cannot be coupled."""
        for number in itertools.count():
            task = self._windows.get()
            if task is None or self.closed.is_set():
                return
            try:
                self.ready.put(self._couple(*task, seed=window_seed(seeds, number), **settings))
            except BaseException as error:  # noqa: BLE001  `next` raises it in the caller's thread
                self.ready.put(error)
                return

    def _couple(self, window: list[Any], device: Any, written: Any, **settings: Any) -> list[Pairs]:
        """Couple a window and wait for the result; on a GPU in a stream of its own, beside that of the training."""
        if device is None:
            return _couple(window, **settings)
        self._stream = self._stream or torch.cuda.Stream(device)
        # The caller's stream may still be writing to these tensors.
        self._stream.wait_event(written)
        with torch.cuda.stream(self._stream):
            pairs = _couple(window, **settings)
            self._stream.synchronize()
        return pairs


def _couple(window: list[Any], **settings: Any) -> list[Pairs]:
    """Couple minibatches; those gathered from a group are cut to the pairs of this rank."""
    gathered = [batch for batch in window if isinstance(batch, Gathered)]
    if not gathered:
        return couple_minibatches(window, **settings)
    pairs = couple_minibatches([each.batch for each in gathered], **settings)
    return [cut_out(own, each.part_of(len(own.x0))) for own, each in zip(pairs, gathered, strict=True)]


_pumps: weakref.WeakSet[_Pump] = weakref.WeakSet()
EXIT_SECONDS = 60.0
"""Longest time that the interpreter waits at its end for a thread that is coupling a window, in seconds."""


@atexit.register
def _stop_pumps() -> None:
    """Stop all threads: one that still runs when the interpreter ends would abort it."""
    pumps = list(_pumps)
    for pump in pumps:
        pump.stop()
    for pump in pumps:
        pump.join(EXIT_SECONDS)


class CoupledBatches(Iterator[Pairs]):
    """Coupled minibatches in their order, a window of them coupled by a thread while the last one is trained on.

    `next` reads minibatches in the caller's thread, one or two for each that it returns, so a run is repeatable under
    `torch.manual_seed` and `np.random.seed` even if reading draws from their generators. Slow reading belongs in the
    workers of a DataLoader.

    Args:
        batches: Any iterable of `(x0, x1)` or `(x0, x1, label)`; it may be endless.
        window: Number of minibatches that are solved together, as one batch of lanes.
        batch_size: Cut the pairs of minibatches, in their random order, into training batches of this size; None: a
            training batch is a minibatch. A training batch may be larger or smaller than a minibatch: pairs that remain
            of a minibatch come first in the next training batch. Pairs that remain of the last minibatch are dropped.
        ahead: Number of windows that are coupled ahead of the one in use, while one more is being read.
        seed: One number or several. The seed and the number of a window decide its draws.
        eps: Entropic strength, as for `couple_minibatches`.
        group: A group of torch.distributed, or "world", as for `couple_minibatches`: minibatches of all ranks are
            gathered as they are read, in the caller's thread. All ranks end with the first that has none left.
        **settings: Other keywords of `couple_minibatches`.

    `next` raises errors of the thread, and those of `batches`, after it has returned all pairs coupled before. `close`
    stops the thread; so do the end of a `with` block, the deletion of this object, and the end of the interpreter.

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
        eps: Eps | Callable[[Tensor, Tensor], Eps] = None,
        window: int = 32,
        batch_size: int | None = None,
        ahead: int = 1,
        seed: int | Sequence[int] = 0,
        group: Any = None,
        **settings: Any,
    ) -> None:
        for name, value in (
            ("window", window),
            ("ahead", ahead),
            ("batch_size", 1 if batch_size is None else batch_size),
        ):
            if not is_count(value):
                raise OptionsError(f"{name} must be an integer of at least 1, got {value!r}")
        check_settings(settings.keys() - {"by_class", "warn"}, CoupledBatches)
        self._batches = iter(batches) if group is None else gather_minibatches(batches, group)
        self._window, self._lead = window, window * (ahead + 1)
        # Minibatches that were read, and used; windows that were submitted, and taken from the thread.
        self._read_count = self._used_count = self._submitted = self._taken = 0
        self._unfinished: list[Any] = []
        self._source_error: Exception | None = None
        self._source_ended = False
        # Coupled minibatches, and training batches of the last one that was taken from them.
        self._coupled: deque[Pairs] = deque()
        self._waiting: Iterator[Pairs] = iter(())
        self._size = batch_size
        self._rest: Pairs | None = None
        self._has_yielded = False
        self._ended = False
        seeds = tuple(seed) if isinstance(seed, Sequence) else (seed, 0, 0, 0)
        self._pump = _Pump(seeds, {"eps": eps, **settings})
        # The thread does not refer to this object, so that deleting the object ends the thread.
        weakref.finalize(self, self._pump.stop)

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
            self._read()
            if self._coupled:
                self._used_count += 1
                self._waiting = self._cut(self._coupled.popleft())
                continue
            if self._taken == self._submitted:
                self._end(self._source_error)
                self._refuse_too_few()
                continue
            try:
                item = self._pump.ready.get(timeout=0.1)
            except queue.Empty:
                continue
            self._taken += 1
            if isinstance(item, BaseException):
                self._end(item)
                continue
            for tensor in (tensor for pairs in item for tensor in pairs[:3]):
                if tensor is not None and tensor.is_cuda:
                    # The memory belongs to the thread's stream, which must not reuse it before this stream has read it.
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))
            self._coupled.extend(item)

    def _read(self) -> None:
        """Read ahead of the minibatches that were used, and submit each window once it is whole.

        The lead grows from one window to `_lead` minibatches by reading two for each that is used, so that the first
        pairs do not wait for the reading of several windows.
        """
        target = self._used_count + min(self._window + self._used_count, self._lead)
        while self._read_count < target and not self._source_ended:
            try:
                self._unfinished.append(next(self._batches))
                self._read_count += 1
            except StopIteration:
                self._source_ended = True
            except Exception as error:  # noqa: BLE001  raised after all pairs that were read before it
                self._source_ended, self._source_error = True, error
            if self._unfinished and (self._source_ended or len(self._unfinished) == self._window):
                self._pump.submit(self._unfinished)
                self._unfinished = []
                self._submitted += 1

    def _cut(self, pairs: Pairs) -> Iterator[Pairs]:
        """Training batches of the remaining pairs of the last minibatch and these; pairs that remain are kept."""
        if self._size is None:
            yield pairs
            return
        pairs, self._rest = pairs if self._rest is None else _join(self._rest, pairs), None
        end = len(pairs.x0) - len(pairs.x0) % self._size
        for first in range(0, end, self._size):
            self._has_yielded = True
            yield cut_out(pairs, slice(first, first + self._size))
        if end < len(pairs.x0):
            self._rest = cut_out(pairs, slice(end, None))

    def _end(self, error: BaseException | None) -> None:
        """End the thread, and raise the error if there is one."""
        self._ended = True
        self._pump.stop()
        self._pump.join()
        if error is not None:
            raise error

    def _refuse_too_few(self) -> None:
        """Raise ProblemError if all minibatches together had fewer pairs than one training batch."""
        if self._rest is not None and not self._has_yielded:
            raise ProblemError(
                f"batch_size is {self._size}, but all minibatches together gave {len(self._rest.x0)} pairs; "
                "lower batch_size or pass more minibatches"
            )

    def close(self) -> None:
        """Stop the thread and wait for its end; pairs that were coupled and not read are dropped."""
        self._pump.stop()
        self._coupled.clear()
        self._waiting = iter(())
        self._pump.join()

    def __enter__(self) -> CoupledBatches:
        """Return this object, which the end of the block closes."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


COUPLED = {"eps", "window", "batch_size", "ahead", "seed", "by_class", "warn", "group"}
"""Keywords of `CoupledBatches` that are not those of `solve`."""
