"""A cost between points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost between points: `scale * kind(x, y)`.

    Kinds by name are `sqeuclidean` (`|x-y|^2`, no half), `euclidean` (`|x-y|`) and `cosine` (`1 - cos(x, y)`). A kind
    of your own is a `Formula`, or an OTT `CostFn`.
    """

    kind: Any = "sqeuclidean"
    scale: float = 1.0
