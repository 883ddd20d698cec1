"""Where minibatches come from: DataLoaders, lists and functions, read anew in every epoch, with x0 from noise."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch

from drainsinkhorn.model.errors import ProblemError

ADVICE = "pass a DataLoader, a list, or the function that makes the iterator"


class MinibatchSource:
    """Minibatches that can be read once an epoch.

    Args:
        minibatches: A DataLoader, a list, another iterable, or a function without arguments that makes one.
        name: Its name in messages.
    """

    def __init__(self, minibatches: Any, name: str) -> None:
        is_function = callable(minibatches) and not isinstance(minibatches, Iterable)
        if not is_function and (isinstance(minibatches, torch.Tensor) or not isinstance(minibatches, Iterable)):
            raise ProblemError(f"{name} must make minibatches, got {type(minibatches).__name__}; {ADVICE}")
        self._minibatches: Any = minibatches
        self._name, self._is_function = name, is_function
        self._is_read = False

    def open(self) -> Iterator[Any]:
        """Begin an epoch; ProblemError for an iterator that an earlier epoch has used up."""
        minibatches: Any = self._minibatches() if self._is_function else self._minibatches
        if not isinstance(minibatches, Iterable):
            raise ProblemError(
                f"{self._name} must return an iterable of minibatches, got {type(minibatches).__name__}; {ADVICE}"
            )
        opened = iter(cast("Iterable[Any]", minibatches))
        if opened is self._minibatches and self._is_read:
            raise ProblemError(
                f"{self._name} is {_article(type(opened).__name__)}, which can be read only once, and an earlier epoch "
                f"has read it; {ADVICE}"
            )
        self._is_read = True
        return opened

    def require_no_workers(self) -> None:
        """Raise ProblemError for a DataLoader with workers: a worker cannot start workers of its own."""
        count = getattr(self._minibatches, "num_workers", 0)
        if count:
            raise ProblemError(
                f"{self._name} is a DataLoader with {count} workers, and a worker of the outer DataLoader cannot start "
                "them; pass num_workers=0 to one of the two"
            )


class Minibatches:
    """Reads minibatches `(x0, x1)`, with labels or without, once an epoch.

    Args:
        source: Makes minibatches `(x0, x1)`, `(x0, x1, label)` or `(x0, x1, label, label of x0)`; with `noise`, makes
            `x1`, `(x1,)` or `(x1, label)`. A pair `(noise, source)` is read as both arguments.
        noise: A function that draws x0 for given x1, such as `torch.randn_like`; or a DataLoader, a list or a generator
            function of `x0`, `(x0,)` or `(x0, label of x0)`, read side by side with `source`. None: minibatches hold
            x0.
    """

    def __init__(self, source: Any, noise: Any = None) -> None:
        if isinstance(source, tuple) and len(source) == 2 and not any(_holds_tensors(part) for part in source):
            if noise is not None:
                raise ProblemError(
                    "source is a pair of loaders, of x0 and of x1, so x0 cannot come from noise= as well"
                )
            noise, source = source
        draws = callable(noise) and not isinstance(noise, Iterable) and not inspect.isgeneratorfunction(noise)
        self._draw: Callable[[Any], Any] | None = cast("Callable[[Any], Any]", noise) if draws else None
        self._sources = [MinibatchSource(source, "source")]
        if noise is not None and not draws:
            self._sources.insert(0, MinibatchSource(noise, "the source of x0"))

    @property
    def has_x0(self) -> bool:
        """Whether minibatches of the source hold x0."""
        return self._draw is None and len(self._sources) == 1

    def open(self) -> Iterator[Any]:
        """Begin an epoch and yield its minibatches."""
        return self._complete(self._read())

    def open_share(self, worker: int, workers: int, seed: int) -> Iterator[Any]:
        """Begin an epoch in one of several workers and yield every `workers`-th minibatch, from number `worker` on.

        All workers read with the same state of torch's generator, so that a DataLoader shuffles alike in all of them
        and every minibatch is used once. Noise is drawn afterwards, from the worker's own state.
        """
        for source in self._sources:
            source.require_no_workers()
        return self._complete(itertools.islice(read_alike(self._read, seed), worker, None, workers))

    def _read(self) -> Iterator[tuple[Any, ...]]:
        """Yield the entries of all sources, as they come, until one of them ends."""
        return zip(*[source.open() for source in self._sources], strict=False)

    def _complete(self, minibatches: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        for place, parts in enumerate(minibatches):
            if self.has_x0:
                (batch,) = parts
                _refuse_labels_as_points(place, batch)
                yield batch
                continue
            x1, *labels = _points(parts[-1], f"x1 of minibatch {place}")
            x0, *source_labels = (self._draw(x1),) if self._draw is not None else _points(parts[0], "x0")
            if source_labels:
                labels = [*(labels or [None]), *source_labels]
            yield (x0, x1, *labels)


def read_alike(open_source: Callable[[], Iterator[Any]], seed: int) -> Iterator[Any]:
    """Yield what a source yields if torch's generator has this seed when it is opened; other draws do not change it."""
    state = torch.Generator().manual_seed(seed).get_state()
    source: Iterator[Any] | None = None
    while True:
        outside = torch.get_rng_state()
        torch.set_rng_state(state)
        try:
            source = open_source() if source is None else source
            read = list(itertools.islice(source, 1))
            state = torch.get_rng_state()
        finally:
            torch.set_rng_state(outside)
        if not read:
            return
        yield read[0]


def _points(batch: Any, name: str) -> Sequence[Any]:
    """Return the points of a minibatch of one side, and its labels if there are any."""
    if isinstance(batch, torch.Tensor):
        return (batch,)
    if not isinstance(batch, (tuple, list)) or not 1 <= len(batch) <= 2:
        actual = f"{len(batch)} entries" if isinstance(batch, (tuple, list)) else type(batch).__name__
        raise ProblemError(f"{name} must be a tensor, (points,) or (points, label), got {actual}")
    return batch


def _holds_tensors(source: Any) -> bool:
    """Whether this is a minibatch, or a list of such, and no loader."""
    return isinstance(source, (torch.Tensor, list, tuple))


def _refuse_labels_as_points(place: int, batch: Any) -> None:
    """Raise ProblemError for a minibatch that is (x1, label) by its shapes, which would be read as (x0, x1)."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return
    x0, x1 = batch
    if not isinstance(x0, torch.Tensor) or not isinstance(x1, torch.Tensor):
        return
    if x0.ndim > 1 and x1.ndim == 1 and not x1.is_floating_point():
        raise ProblemError(
            f"minibatch {place} is (x0, x1) of shapes {tuple(x0.shape)} and {tuple(x1.shape)}, and x1 holds integers, "
            "as labels do; if it is (x1, label), pass noise=torch.randn_like to draw x0"
        )


def _article(noun: str) -> str:
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
