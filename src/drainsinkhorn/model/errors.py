"""Exceptions and warnings of the library."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterable, Set
from typing import Any


class DrainError(Exception):
    """Base class of every exception that this library raises on purpose."""


class ProblemError(DrainError, ValueError):
    """A problem or argument that is invalid; the text says what to change."""


class OptionsError(DrainError, ValueError):
    """An option with an invalid value; the text says which values are valid."""


class BackendUnavailable(DrainError, ImportError):
    """A backend was requested by name and cannot run here; the text says what to install."""


class ContractError(DrainError, AssertionError):
    """A backend broke a promise of the pack contract.

    Attributes:
        results: Results by ticket that were finished before, if `solve` raised the error; else empty.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.results: dict[int, Any] = {}


class NotConverged(DrainError, RuntimeError):
    """Raised by `Solution.raise_for_status` when some problem is not CONVERGED."""


class FileError(DrainError, ValueError):
    """A file that cannot be read as problems or as a solution; the text says what was expected."""


class OutOfMemory(DrainError, MemoryError):
    """Memory ran out outside of any lane: while problems were sorted, or results were recorded.

    Attributes:
        results: Finished results that were not yet returned, by ticket.
        ledger: The account of the run.
    """

    def __init__(self, message: str, results: dict[int, Any], ledger: object) -> None:
        super().__init__(message)
        self.results = results
        self.ledger = ledger

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the results, so that a worker process can raise it in its parent."""
        return type(self), (self.args[0], self.results, self.ledger)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `solve`; no finished result is lost.

    Attributes:
        results: Results by ticket: of finished problems, and of unconverged ones that waited for their rescue.
        unrescued: Tickets of problems that waited for their rescue. Their results are those of the first run, and do
            not count as finished.
        total: Number of problems, finished or not.
        ledger: The account of the run so far.
    """

    def __init__(self, results: dict[int, Any], total: int, ledger: Any, unrescued: Set[int] = frozenset()) -> None:
        waiting = f"; {len(unrescued)} more waited for their rescue" if unrescued else ""
        finished = len(results) - len(unrescued)
        super().__init__(f"interrupted with {finished} of {total} problems finished{waiting}; see .results")
        self.results = results
        self.unrescued = unrescued
        self.total = total
        self.ledger = ledger

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the results, so that a worker process can raise it in its parent."""
        return type(self), (self.results, self.total, self.ledger, self.unrescued)


class FeedClosed(DrainError, RuntimeError):
    """A problem was pushed to a feed that was closed, or whose stream has ended."""


class FeedFull(DrainError, TimeoutError):
    """A feed had no room for a problem within the timeout."""


class DeadlineError(DrainError, TimeoutError):
    """A problem's deadline came before its result.

    Attributes:
        result: The unconverged Result with status EXPIRED; None if the problem never ran, or its lane has not left yet.
    """

    def __init__(self, message: str, result: object) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the result, so that a worker process can raise it in its parent."""
        return type(self), (self.args[0], self.result)


class FleetError(DrainError, RuntimeError):
    """A fleet cannot work: its workers do not start, or it is used in a way that is not supported."""


class DrainWarning(RuntimeWarning):
    """Base class of every warning that this library issues."""


class ConvergenceWarning(DrainWarning):
    """Some problems did not converge, or were invalid; the text counts them and says what to do.

    If warnings are turned into errors no result of `solve` is lost: `solution` is what it would have returned.

    Attributes:
        solution: The Solution if `solve` issued the warning; None if a stream did, or taking a plan.
    """

    def __init__(self, message: str, solution: object = None) -> None:
        super().__init__(message)
        self.solution = solution


class GradientWarning(DrainWarning):
    """A constant was computed from tensors that require gradients; the text names the function that differentiates."""


class SubstitutionWarning(DrainWarning):
    """Settings of another library's solver were replaced by others with the same solution; the text names them."""


class ObserverWarning(DrainWarning):
    """An observer raised an exception and received no further events; the run continued without it.

    Attributes:
        solution: As for ConvergenceWarning.
        __cause__: The exception that the observer raised.
    """

    def __init__(self, message: str, solution: object = None) -> None:
        super().__init__(message)
        self.solution = solution


def warn(warning: DrainWarning, cause: Exception | None = None) -> None:
    """Issue a warning that points to the caller's line outside of this package.

    Args:
        warning: The warning.
        cause: The exception that the warning reports; None if there is none.
    """
    if cause is not None:
        warning.__cause__ = cause
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]:
        frame, level = frame.f_back, level + 1
    try:
        warnings.warn(warning, stacklevel=level)
    finally:
        # If warnings are errors, the traceback refers to this frame, and a reference cycle would keep the solution.
        del warning, cause, frame


def warn_of_constants(what: str, instead: str, values: Iterable[Any]) -> None:
    """Issue a GradientWarning if torch would record operations on one of these values.

    Args:
        what: What was computed, in the plural.
        instead: The function that differentiates it.
        values: The caller's arrays.
    """
    if any(getattr(value, "requires_grad", False) for value in values) and sys.modules["torch"].is_grad_enabled():
        warn(
            GradientWarning(
                f"{what} are constants, but some of their tensors require gradients: use {instead}, or detach the "
                "tensors to silence this"
            )
        )


class KernelCacheWarning(UserWarning):
    """Compiled kernels cannot be saved on disk, so every process compiles its own; the text says what to set."""
