"""Constraints on the marginals of a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Marginal:
    """How strictly one marginal of a plan must equal its weights.

    A marginal may differ from its weights at the price `rho KL(P 1 | a)`, with `rho = 1 / kappa`; at kappa = 0 the
    price is infinite, and the marginal is hard. A marginal that is not hard is called soft.

    Attributes:
        kappa: The reciprocal of the price of one nat of KL; its unit is one over that of the cost.
    """

    kappa: float = 0.0

    @property
    def is_hard(self) -> bool:
        """True if the marginal must equal its weights."""
        return self.kappa == 0.0

    @property
    def rho(self) -> float:
        """The price of one nat of KL, in units of the cost; infinite for a hard marginal."""
        return math.inf if self.is_hard else 1.0 / self.kappa

    def damping(self, eps: float) -> float:
        """Return the factor `lambda = 1 / (1 + eps kappa)` that damps the update of a leg: 1 for a hard marginal."""
        return 1.0 / (1.0 + eps * self.kappa)


class Marginals(NamedTuple):
    """The constraints on both marginals of a plan."""

    row: Marginal
    col: Marginal

    @property
    def are_hard(self) -> bool:
        """True if both marginals are hard: balanced transport."""
        return self.row.kappa == 0.0 and self.col.kappa == 0.0

    @property
    def exchanged(self) -> Marginals:
        """The constraints of the problem from y to x."""
        return Marginals(self.col, self.row)


BALANCED = Marginals(Marginal(), Marginal())
"""Both marginals are hard."""
