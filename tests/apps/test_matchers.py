"""Matchers under torchcfm's names: the same pairs, times and noise under the same global seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conftest import needs

torch = needs("torch")
needs("ot")
needs("torchcfm")

from torchcfm import conditional_flow_matching as torchcfm  # noqa: E402
from torchcfm.optimal_transport import OTPlanSampler as TheirSampler  # noqa: E402

from drainsinkhorn.flow import OTPlanSampler, matchers  # noqa: E402


def clouds(n: int, m: int, *shape: int) -> Any:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, *shape, generator=generator), torch.randn(m, *shape, generator=generator) + 1


def seeded(call: Any) -> list[Any]:
    """What a call returns under fixed global seeds, and the numbers that come next from both generators."""
    torch.manual_seed(3)
    np.random.seed(4)  # noqa: NPY002
    returned = call()
    returned = returned if isinstance(returned, tuple) else (returned,)
    return [*returned, torch.rand(2), np.random.random_sample(2)]  # noqa: NPY002


def assert_same(first: list[Any], second: list[Any]) -> None:
    for ours, theirs in zip(first, second, strict=True):
        assert (ours is None and theirs is None) or np.array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("method", ["exact", "partial"])
@pytest.mark.parametrize("replace", [True, False])
def test_plans_of_pot_give_the_pairs_of_torchcfm(method: str, replace: bool) -> None:
    x0, x1 = (points.double() for points in clouds(20, 30, 2))
    labels = torch.arange(20), torch.arange(30)
    ours, theirs = OTPlanSampler(method, reg=0.5), TheirSampler(method, reg=0.5)
    for name, args in (("sample_plan", (x0, x1)), ("sample_plan_with_labels", (x0, x1, *labels))):
        assert_same(*(seeded(lambda s=s, n=name, a=args: getattr(s, n)(*a, replace=replace)) for s in (ours, theirs)))
    plan = theirs.get_map(x0, x1)
    assert_same(*(seeded(lambda s=s: s.sample_map(plan, 40, replace=replace)) for s in (ours, theirs)))


def test_trajectories_are_those_of_torchcfm() -> None:
    steps = torch.stack([clouds(25, 1, 2)[0].double() + t for t in range(4)], dim=1)
    steps[:, 2] = -steps[:, 2]
    samplers = OTPlanSampler("exact", reg=5.0), TheirSampler("exact", reg=5.0)
    assert_same(*(seeded(lambda s=s: s.sample_trajectory(steps)) for s in samplers))


def test_a_sinkhorn_draw_takes_as_many_numbers_as_torchcfm_s() -> None:
    x0, x1 = clouds(30, 30, 2)
    ours, theirs = (make("sinkhorn", reg=0.5) for make in (OTPlanSampler, TheirSampler))
    first, again, reference = (seeded(lambda s=s: s.sample_plan(x0, x1)) for s in (ours, ours, theirs))
    assert_same(first, again)
    assert_same(first[2:], reference[2:])
    steps = torch.stack([x0, x1, x0], dim=1)
    assert_same(*(seeded(lambda s=s: s.sample_trajectory(steps))[1:] for s in (ours, theirs)))


def test_a_dense_plan_gives_torchcfm_s_sinkhorn_pairs() -> None:
    x0, x1 = (points.double() for points in clouds(40, 50, 2))
    ours = OTPlanSampler("sinkhorn", reg=0.5, tol=1e-9)
    pairs = seeded(lambda: ours.sample_map(ours.get_map(x0, x1), 40))
    theirs = TheirSampler("sinkhorn", reg=0.5)
    assert_same(pairs, seeded(lambda: theirs.sample_map(theirs.get_map(x0, x1), 40)))


NAMES = [
    "ConditionalFlowMatcher",
    "ExactOptimalTransportConditionalFlowMatcher",
    "SchrodingerBridgeConditionalFlowMatcher",
    "TargetConditionalFlowMatcher",
    "VariancePreservingConditionalFlowMatcher",
]


@pytest.mark.parametrize("name", NAMES)
def test_matchers_are_repeated_to_the_bit(name: str) -> None:
    x0, x1 = clouds(32, 32, 3, 4)
    for verb in ("sample_location_and_conditional_flow", "guided_sample_location_and_conditional_flow"):
        if not hasattr(getattr(torchcfm, name), verb):
            continue
        both = (
            seeded(lambda m=module, v=verb: getattr(getattr(m, name)(sigma=0.2), v)(x0, x1, return_noise=True))
            for module in (matchers, torchcfm)
        )
        assert_same(*both)


class TestEntropicMatcher:
    @pytest.mark.parametrize("method", ["sinkhorn", "unbalanced", "partial"])
    def test_straight_paths_between_pairs_of_the_plan(self, method: str) -> None:
        x0, x1 = clouds(64, 64, 2)
        matcher = matchers.EntropicOptimalTransportConditionalFlowMatcher(sigma=0.1, reg=0.3, method=method)
        assert isinstance(matcher, torchcfm.ExactOptimalTransportConditionalFlowMatcher)

        t, xt, velocity, noise, *_ = seeded(
            lambda: matcher.sample_location_and_conditional_flow(x0, x1, return_noise=True)
        )
        z0, z1, *_ = seeded(lambda: OTPlanSampler(method, reg=0.3).sample_plan(x0, x1))
        assert torch.equal(velocity, z1 - z0)
        assert torch.equal(xt, t[:, None] * z1 + (1 - t[:, None]) * z0 + 0.1 * noise)
        assert velocity.square().sum(1).mean() < 0.8 * torch.cdist(x0, x1).square().mean()

    def test_labels_belong_to_their_points(self) -> None:
        x0, x1 = clouds(16, 16, 2)
        matcher = matchers.EntropicOptimalTransportConditionalFlowMatcher(reg=0.3)
        labels = torch.arange(16), torch.arange(16)
        _, _, velocity, y0, y1 = matcher.guided_sample_location_and_conditional_flow(x0, x1, *labels)
        assert torch.equal(velocity, x1[y1] - x0[y0])

    def test_settings_reach_the_sampler(self) -> None:
        make = matchers.EntropicOptimalTransportConditionalFlowMatcher
        sampler = make(reg=0.3, tol=1e-5, normalize_cost=True, warn=False).ot_sampler
        assert (sampler.method, sampler.reg, sampler.tol) == ("sinkhorn", 0.3, 1e-5)
        assert sampler.normalize_cost
        assert not sampler.warn
        with pytest.raises(ValueError, match="use ExactOptimalTransportConditionalFlowMatcher"):
            make(reg=0.3, method="exact")
