"""A certificate: both marginal residuals of emitted potentials, with a rigorous rounding bound.

Everything is computed in float64 from the caller's own arrays, by code that no pack uses. With

    P_ij = exp(f_i / eps + log a_i + g_j / eps + log b_j - C_ij / eps)

one sweep over the plan gives both sides: `row = sum_i |sum_j P_ij - a_i|`, `col = sum_j |sum_i P_ij - b_j|`.
`numerics.rounding.certified_residual` derives the bound from sums over the plan.

Where a marginal is soft, a_i is `a_i exp(-kappa f_i)`, and residuals are relative to the mass of the plan.

Arrays on the host are certified one lane at a time (`backends.certificate.host`), arrays on a CUDA device all lanes of
a call together (`backends.certificate.batch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drainsinkhorn.backends.certificate.batch import certify_batches
from drainsinkhorn.backends.certificate.host import Costs as Costs
from drainsinkhorn.backends.certificate.host import Sweep as Sweep
from drainsinkhorn.backends.certificate.host import certify_on_host
from drainsinkhorn.backends.certificate.host import device_loader as device_loader
from drainsinkhorn.backends.certificate.host import unit_vectors as unit_vectors
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import UNKNOWN, Residual, Residuals
from drainsinkhorn.numerics.arrays import on_cuda


def certify(instance: Instance[Any], potentials: Potentials[Any], sweep: Sweep | None = None) -> Residual:
    """Return both residuals of the potentials, whose `band` bounds the rounding error of this computation.

    Args:
        instance: A validated problem.
        potentials: Potentials as they are emitted, over all points.
        sweep: A compiled sweep for arrays on the CPU; by default NumPy sweeps.
    """
    if on_cuda(instance.like):
        return certify_batches([(instance, potentials)])[0]
    return certify_on_host(instance, potentials, sweep)


def certificates(emission: Emission, broken: Sequence[bool], sweep: Sweep | None = None) -> Residuals:
    """Certify what lanes emit; the residual of a broken lane, whose state is not finite, is unknown.

    Lanes whose arrays lie on a CUDA device are certified together, and read back once.
    """
    residuals, together = [UNKNOWN] * len(broken), list[int]()
    for lane, (instance, is_broken) in enumerate(zip(emission.instances, broken, strict=True)):
        if is_broken:
            continue
        if on_cuda(instance.like):
            together.append(lane)
        else:
            residuals[lane] = certify_on_host(instance, emission.potentials(lane), sweep)
    batch = [(emission.instances[lane], emission.potentials(lane)) for lane in together]
    for lane, residual in zip(together, certify_batches(batch), strict=True):
        residuals[lane] = residual
    return Residuals.from_rows(residuals)
