"""The eps of a command line or a file as text: a number, a share of the cost, or a sharpness."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from drainsinkhorn.model.eps import STATISTICS, Eps, FallingEps, RelativeEps, SharpnessEps, relative, sharpness
from drainsinkhorn.model.errors import FileError, OptionsError, ProblemError

SYNTAX = 'a number ("0.05"), a share of the cost ("5%", "5% median", "5% std") or a sharpness ("sharpness 0.1")'
SHARE = re.compile(r"(?P<share>[^%\s]+)\s*%\s*(?:(?:of\s+)?(?:the\s+)?(?P<of>[a-z]+))?")
SHARPNESS = re.compile(r"sharpness\s+(?P<target>\S+)")


def parse_eps(text: str) -> Eps:
    """Return the eps that a text stands for; OptionsError says what may be written.

    Examples:
        >>> parse_eps("0.05"), parse_eps("5%"), parse_eps("10% median")
        (0.05, RelativeEps(share=0.05, of='mean'), RelativeEps(share=0.1, of='median'))
        >>> parse_eps("sharpness 0.1").target
        0.1
    """
    plain = text.strip().lower()
    share, sharp = SHARE.fullmatch(plain), SHARPNESS.fullmatch(plain)
    try:
        if share is not None:
            return relative(float(share["share"]) / 100, share["of"] or STATISTICS[0])
        return sharpness(float(sharp["target"])) if sharp is not None else float(plain)
    except ProblemError as error:
        raise OptionsError(f"eps is {text!r}: {error}") from None
    except ValueError:
        raise OptionsError(f"eps is {text!r}; write {SYNTAX}") from None


def format_eps(eps: RelativeEps | SharpnessEps | FallingEps) -> str:
    """Return a text that `parse_eps` reads as this eps; ProblemError if there is none.

    There is none for a sharpness with a tolerance of its own, and for an eps that falls.

    Examples:
        >>> parse_eps(format_eps(relative(0.1, of="std"))) == relative(0.1, of="std")
        True
    """
    if isinstance(eps, FallingEps):
        raise ProblemError(f"files and the service take no eps that falls ({eps}); pass its last value, {eps.target}")
    if isinstance(eps, RelativeEps):
        return f"{100 * eps.share!r}% {eps.of}"
    if eps != sharpness(eps.target):
        raise ProblemError(f"a text has no place for within={eps.within:g} of a sharpness; leave it out")
    return f"sharpness {eps.target!r}"


def eps_from_array(values: Any) -> Any:
    """Return the eps of a file: its numbers as they are; of texts what they stand for, one or a list."""
    if values.dtype.kind != "U":
        return values
    try:
        return parse_eps(str(values)) if values.ndim == 0 else [parse_eps(str(text)) for text in np.ravel(values)]
    except OptionsError as error:
        raise FileError(str(error)) from None
