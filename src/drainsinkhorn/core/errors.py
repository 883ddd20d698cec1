"""Everything the library raises on purpose."""

from __future__ import annotations


class DrainError(Exception):
    """Root of every error this library raises on purpose."""


class ProblemError(DrainError, ValueError):
    """A problem that cannot be solved as given; the text says what to change."""


class OptionsError(DrainError, ValueError):
    """An option that makes no sense; the text says which values do."""


class BackendUnavailable(DrainError, ImportError):
    """A backend was asked for by name and cannot run here; the text says what to install."""


class ContractError(DrainError, AssertionError):
    """A backend broke a promise of the pack contract."""


class NotConverged(DrainError, RuntimeError):
    """Raised by `Solution.raise_for_status` when some problem is not CONVERGED."""


class FileError(DrainError, ValueError):
    """A file that cannot be read as problems or as a solution; the text says what was expected."""
