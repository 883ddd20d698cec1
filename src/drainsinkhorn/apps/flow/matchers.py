"""torchcfm's flow matchers under their own names, with this library's sampler.

    from torchcfm.conditional_flow_matching import *     # before
    from drainsinkhorn.flow.matchers import *            # after

`ot_method="sinkhorn"` then draws from verified couplings, on the device of the tensors; "exact", torchcfm's default,
stays POT's. `EntropicOptimalTransportConditionalFlowMatcher` is one more: optimal transport flow matching over entropic
plans. Matchers that do not couple are torchcfm's own. Pairs follow `np.random.seed`, times and noise follow
`torch.manual_seed`, as in torchcfm. Needs torchcfm.
"""

from __future__ import annotations

from typing import Any

from drainsinkhorn.apps.flow.sampler import OTPlanSampler as OTPlanSampler
from drainsinkhorn.model.errors import BackendUnavailable

try:
    from torchcfm import conditional_flow_matching as _torchcfm
except ImportError as error:
    raise BackendUnavailable(f"drainsinkhorn.flow.matchers needs torchcfm ({error}); pip install torchcfm") from error

ConditionalFlowMatcher = _torchcfm.ConditionalFlowMatcher
TargetConditionalFlowMatcher = _torchcfm.TargetConditionalFlowMatcher
VariancePreservingConditionalFlowMatcher = _torchcfm.VariancePreservingConditionalFlowMatcher
pad_t_like_x = _torchcfm.pad_t_like_x

__all__ = [
    "ConditionalFlowMatcher",
    "EntropicOptimalTransportConditionalFlowMatcher",
    "ExactOptimalTransportConditionalFlowMatcher",
    "OTPlanSampler",
    "SchrodingerBridgeConditionalFlowMatcher",
    "TargetConditionalFlowMatcher",
    "VariancePreservingConditionalFlowMatcher",
    "pad_t_like_x",
]


class ExactOptimalTransportConditionalFlowMatcher(_torchcfm.ExactOptimalTransportConditionalFlowMatcher):
    """torchcfm's matcher over exact plans, which POT computes; this library's sampler draws the pairs."""

    def __init__(self, sigma: float = 0.0) -> None:
        super().__init__(sigma)
        self.ot_sampler: Any = OTPlanSampler(method="exact")


class EntropicOptimalTransportConditionalFlowMatcher(_torchcfm.ExactOptimalTransportConditionalFlowMatcher):
    """Optimal transport flow matching over entropic plans: torchcfm's straight paths between pairs of an entropic plan.

    Args:
        sigma: Standard deviation of the noise around the straight path.
        reg: Entropic strength, in units of the squared distance.
        method: "sinkhorn" is solved by this library; "unbalanced" and "partial" are solved by POT.
        **settings: Further keywords of `OTPlanSampler`, such as tol, seed, normalize_cost or backend.

    Examples:
        >>> torch = __import__("torch")
        >>> matcher = EntropicOptimalTransportConditionalFlowMatcher(sigma=0.1, reg=0.5)
        >>> t, xt, velocity = matcher.sample_location_and_conditional_flow(torch.randn(64, 2), torch.randn(64, 2) + 3)
        >>> tuple(velocity.shape)
        (64, 2)
    """

    def __init__(self, sigma: float = 0.0, reg: float = 0.05, method: str = "sinkhorn", **settings: Any) -> None:
        if method == "exact":
            raise ValueError("an exact plan has no reg; use ExactOptimalTransportConditionalFlowMatcher(sigma)")
        super().__init__(sigma)
        self.ot_sampler: Any = OTPlanSampler(method, reg, **settings)


class SchrodingerBridgeConditionalFlowMatcher(_torchcfm.SchrodingerBridgeConditionalFlowMatcher):
    """torchcfm's Schrodinger bridge matcher; its eps is 2 sigma^2.

    Args:
        sigma: Spread of the bridges.
        ot_method: "sinkhorn" is solved by this library, all other methods by POT.
        **settings: Further keywords of `OTPlanSampler`, such as tol, seed or backend.
    """

    def __init__(self, sigma: float = 1.0, ot_method: str = "exact", **settings: Any) -> None:
        super().__init__(sigma, ot_method)
        self.ot_sampler: Any = OTPlanSampler(method=ot_method, reg=2 * self.sigma**2, **settings)
