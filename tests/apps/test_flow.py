"""Flow matching: the sampler against POT and torchcfm itself, and minibatches coupled ahead."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

import drainsinkhorn as ds
from tests.conftest import needs

torch = needs("torch")

from drainsinkhorn.apps.flow.prefetch import window_seed  # noqa: E402
from drainsinkhorn.flow import (  # noqa: E402
    CoupledBatches,
    CouplingDataset,
    OTPlanSampler,
    couple_minibatches,
)


def clouds(n: int = 40, m: int = 40, d: int = 2, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator), torch.randn(m, d, generator=generator) + 1


class TestSampler:
    def test_the_map_is_that_of_pot(self) -> None:
        ot = needs("ot")
        x0, x1 = clouds()
        cost = torch.cdist(x0.double(), x1.double()).square().numpy()
        theirs = ot.sinkhorn(np.full(40, 1 / 40), np.full(40, 1 / 40), cost, reg=0.5, numItermax=10_000, stopThr=1e-12)
        assert np.abs(OTPlanSampler("sinkhorn", reg=0.5, tol=1e-7).get_map(x0, x1) - theirs).sum() < 1e-6
        scaled = OTPlanSampler("sinkhorn", reg=0.05, tol=1e-7, normalize_cost=True).get_map(x0, x1)
        theirs = ot.sinkhorn(np.full(40, 1 / 40), np.full(40, 1 / 40), cost / cost.max(), reg=0.05, stopThr=1e-12)
        assert np.abs(scaled - theirs).sum() < 1e-5

    def test_pairs_follow_the_plan(self) -> None:
        x0, x1 = clouds(12, 10)
        sampler = OTPlanSampler("sinkhorn", reg=1.0, seed=0, tol=1e-6)
        plan, counts = sampler.get_map(x0, x1), np.zeros((12, 10))
        labels = torch.arange(12), torch.arange(10)
        for _ in range(3000):
            _, _, i, j = sampler.sample_plan_with_labels(x0, x1, *labels)
            np.add.at(counts, (i.numpy(), j.numpy()), 1)
            if counts.sum() > 20_000:
                break
        expected = counts.sum() * plan.ravel() / plan.sum()
        some = expected > 10
        seen = counts.ravel()[some]
        assert chisquare(seen, expected[some] * seen.sum() / expected[some].sum()).pvalue > 1e-4

    def test_images_and_labels_stay_together(self) -> None:
        x0, x1 = torch.randn(16, 1, 4, 4), torch.randn(16, 1, 4, 4)
        y0, y1 = torch.arange(16), torch.arange(16) + 100
        a, b, la, lb = OTPlanSampler("sinkhorn", reg=5.0).sample_plan_with_labels(x0, x1, y0, y1)
        assert a.shape == b.shape == x0.shape
        assert torch.equal(a, x0[la])
        assert torch.equal(b, x1[lb - 100])
        assert OTPlanSampler("sinkhorn", reg=5.0).sample_plan_with_labels(x0, x1)[2:] == (None, None)

    def test_seeds(self) -> None:
        x0, x1 = clouds()
        drawn = [OTPlanSampler("sinkhorn", reg=0.5, seed=3).sample_plan(x0, x1)[1] for _ in range(2)]
        assert torch.equal(*drawn)
        np.random.seed(0)  # noqa: NPY002
        first = OTPlanSampler("sinkhorn", reg=0.5).sample_plan(x0, x1)[1]
        second = OTPlanSampler("sinkhorn", reg=0.5).sample_plan(x0, x1)[1]
        assert not torch.equal(first, second)
        np.random.seed(0)  # noqa: NPY002
        assert torch.equal(first, OTPlanSampler("sinkhorn", reg=0.5).sample_plan(x0, x1)[1])

    def test_without_replacement_pairs_are_distinct(self) -> None:
        x0, x1 = clouds(30, 30)
        labels = torch.arange(30), torch.arange(30)
        sampler = OTPlanSampler("sinkhorn", reg=1.0, seed=0)
        _, _, i, j = sampler.sample_plan_with_labels(x0, x1, *labels, replace=False)
        assert len(set(zip(i.tolist(), j.tolist(), strict=True))) == 30

    def test_trajectories(self) -> None:
        steps = torch.stack([clouds(25, 25, seed=t)[0] + 5 * t for t in range(4)], dim=1)
        for method in ("sinkhorn", "exact"):
            found = OTPlanSampler(method, reg=0.5, seed=0).sample_trajectory(steps)
            assert isinstance(found, np.ndarray)
            assert found.shape == (25, 4, 2)
            assert np.array_equal(found[:, 0], steps[:, 0])
            for t in range(4):
                assert all((found[k, t] == steps[:, t].numpy()).all(1).any() for k in range(25))

    def test_other_methods_are_pot_s(self) -> None:
        ot = needs("ot")
        x0, x1 = clouds(20, 20)
        cost, a = torch.cdist(x0.double(), x1.double()).square().numpy(), np.full(20, 1 / 20)
        assert np.allclose(OTPlanSampler("exact").get_map(x0, x1), ot.emd(a, a, cost))
        found = OTPlanSampler("partial", reg=0.5).get_map(x0, x1)
        assert np.allclose(found, ot.partial.entropic_partial_wasserstein(a, a, cost, reg=0.5))
        i, j = OTPlanSampler("exact", seed=0).sample_plan(x0, x1)
        assert i.shape == j.shape == x0.shape

    @pytest.mark.parametrize("reg_m", [1.0, 20.0, (2.0, float("inf"))])
    def test_unbalanced_plans_are_those_of_pot(self, reg_m: Any) -> None:
        ot = needs("ot")
        x0, x1 = (points.double() for points in clouds(20, 30))
        cost, a, b = torch.cdist(x0, x1).square().numpy(), np.full(20, 1 / 20), np.full(30, 1 / 30)
        sampler = OTPlanSampler("unbalanced", reg=0.5, reg_m=reg_m, tol=1e-11, seed=0)
        plan = ot.unbalanced.sinkhorn_knopp_unbalanced(a, b, cost, 0.5, reg_m, stopThr=1e-14, numItermax=100_000)
        np.testing.assert_allclose(sampler.get_map(x0, x1), plan, rtol=1e-5, atol=1e-14)
        scaled = OTPlanSampler("unbalanced", reg=0.5, reg_m=reg_m, tol=1e-11, normalize_cost=True).get_map(x0, x1)
        cost = cost / cost.max()
        plan = ot.unbalanced.sinkhorn_knopp_unbalanced(a, b, cost, 0.5, reg_m, stopThr=1e-14, numItermax=100_000)
        np.testing.assert_allclose(scaled, plan, rtol=1e-5, atol=1e-14)
        assert sampler.sample_trajectory(torch.stack([x0, x0 + 1], dim=1)).shape == (20, 2, 2)

    def test_unbalanced_pairs_leave_out_points_without_a_partner(self) -> None:
        x0, x1 = clouds(200, 200)
        x0[:20] += 100
        far = OTPlanSampler("unbalanced", reg=0.5, reg_m=2.0, seed=0).sample_plan(x0, x1)[0]
        assert (far[:, 0] < 50).all()
        assert (OTPlanSampler("sinkhorn", reg=0.5, seed=0).sample_plan(x0, x1)[0][:, 0] > 50).any()

    def test_nothing_is_silently_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ValueError, match="Unknown method: emd; use one of"):
            OTPlanSampler("emd")
        monkeypatch.setitem(sys.modules, "ot", None)
        with pytest.raises(ds.BackendUnavailable, match=r"method 'exact' is POT's .*drainsinkhorn\[flow\]"):
            OTPlanSampler("exact")
        OTPlanSampler("sinkhorn")

    def test_bad_minibatches_say_so(self) -> None:
        x0, x1 = clouds(20, 20)
        x0[0, 0] = float("nan")
        with pytest.raises(ds.ProblemError, match="cannot be coupled: INVALID"):
            OTPlanSampler("sinkhorn", reg=0.5).sample_plan(x0, x1)
        x0, x1 = clouds(60, 60)
        with pytest.warns(RuntimeWarning, match="did not converge"):
            OTPlanSampler("sinkhorn", reg=1e-5, tol=1e-9).sample_plan(x0, x1)


EXAMPLE = """
import numpy as np
import torch
from torchcfm.conditional_flow_matching import *
from torchcfm.models.models import MLP
from {module} import OTPlanSampler

torch.manual_seed(0)
np.random.seed(0)
sigma, dim, batch_size = 0.5, 2, 64
model = MLP(dim=dim, time_varying=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
FM = SchrodingerBridgeConditionalFlowMatcher(sigma=sigma, ot_method="sinkhorn")
FM.ot_sampler = OTPlanSampler(method="sinkhorn", reg=2 * sigma**2)
losses = []
for k in range(40):
    optimizer.zero_grad()
    x0 = torch.randn(batch_size, dim)
    x1 = torch.randn(batch_size, dim) * 0.3 + 3 * torch.randint(0, 2, (batch_size, 1)) - 1.5
    t, xt, ut = FM.sample_location_and_conditional_flow(x0, x1)
    vt = model(torch.cat([xt, t[:, None]], dim=-1))
    loss = torch.mean((vt - ut) ** 2)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
labels = torch.randint(0, 2, (batch_size,))
t, xt, ut, y0, y1 = FM.guided_sample_location_and_conditional_flow(x0, x1, y1=labels)
ot_sampler = OTPlanSampler(method="exact")
z0, z1 = ot_sampler.sample_plan(x0, x1)
pi = FM.ot_sampler.get_map(x0, x1)
i, j = FM.ot_sampler.sample_map(pi, batch_size)
paths = OTPlanSampler(method="sinkhorn", reg=0.5).sample_trajectory(torch.stack([x0, x1, x0], dim=1))
"""


MATCHING = """
from {module} import *

torch.manual_seed(0)
np.random.seed(0)
model = MLP(dim=2, time_varying=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
losses = []
for FM in (SchrodingerBridgeConditionalFlowMatcher(sigma=0.5, ot_method="sinkhorn"),
           SchrodingerBridgeConditionalFlowMatcher(sigma=0.5),
           ExactOptimalTransportConditionalFlowMatcher(sigma=0.1),
           ConditionalFlowMatcher(sigma=0.1)):
    for k in range(15):
        optimizer.zero_grad()
        x0 = torch.randn(64, 2)
        x1 = torch.randn(64, 2) * 0.3 + 3 * torch.randint(0, 2, (64, 1)) - 1.5
        t, xt, ut = FM.sample_location_and_conditional_flow(x0, x1)
        loss = torch.mean((model(torch.cat([xt, t[:, None]], dim=-1)) - ut) ** 2)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""


def test_code_for_torchcfm_s_matchers_runs_with_another_import() -> None:
    needs("torchcfm")
    from torchcfm.models.models import MLP

    found = {}
    for module in ("torchcfm.conditional_flow_matching", "drainsinkhorn.apps.flow.matchers"):
        names: dict[str, Any] = {"torch": torch, "np": np, "MLP": MLP}
        exec(MATCHING.format(module=module), names)
        found[module] = names["losses"]
    theirs, ours = (np.median(losses) for losses in found.values())
    assert ours == pytest.approx(theirs, rel=0.3)


def test_matchers_without_torchcfm_say_what_to_install() -> None:
    code = "import sys; sys.modules['torchcfm'] = None; import drainsinkhorn.flow.matchers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "BackendUnavailable: drainsinkhorn.flow.matchers needs torchcfm" in done.stderr
    assert "pip install torchcfm" in done.stderr


def test_torchcfm_s_own_classes_run_on_it() -> None:
    needs("torchcfm")
    found: dict[str, Any] = {}
    for module in ("torchcfm.optimal_transport", "drainsinkhorn.flow"):
        names: dict[str, Any] = {}
        exec(EXAMPLE.format(module=module), names)
        assert names["ut"].shape == (64, 2)
        assert names["y1"].shape == (64,)
        assert names["paths"].shape == (64, 3, 2)
        assert names["pi"].shape == (64, 64)
        assert names["z0"].shape == names["z1"].shape == (64, 2)
        found[module] = names
    # The median: velocities of bridges are unbounded near their ends.
    theirs, ours = (np.median(names["losses"]) for names in found.values())
    assert ours == pytest.approx(theirs, rel=0.3)
    # Both plans of the same points, which differ by their tolerances alone.
    x0, x1 = found["drainsinkhorn.flow"]["x0"], found["drainsinkhorn.flow"]["x1"]
    plans = [names["FM"].ot_sampler.get_map(x0, x1) for names in found.values()]
    assert np.abs(plans[0] - plans[1]).sum() < 0.02


def test_many_dimensions_give_the_same_plan() -> None:
    x0, x1 = clouds(50, 60, d=200, seed=1)
    found = OTPlanSampler("sinkhorn", reg=20.0, tol=1e-8).get_map(1000 + x0, 1000 + x1)
    truth = ds.solve((1000 + x0).double(), (1000 + x1).double(), eps=20.0, tol=1e-8)[0].plan()
    assert np.abs(found - truth.numpy()).sum() < 1e-7
    with pytest.raises(ds.ProblemError, match="cannot be coupled: INVALID"):
        OTPlanSampler("sinkhorn", reg=20.0).sample_plan(x0 * float("nan"), x1)


def stream(count: int, n: int = 32, m: int = 32) -> Any:
    return ((*clouds(n, m, seed=k), torch.arange(m) % 3) for k in range(count))


class TestAhead:
    def test_the_thread_draws_what_a_call_draws(self) -> None:
        with CoupledBatches(stream(7), eps=0.5, window=3, seed=5) as coupled:
            found = list(coupled)
        seeds = [window_seed((5, 0, 0, 0), k) for k in range(3)]
        windows = [list(stream(7))[k : k + 3] for k in (0, 3, 6)]
        truth = [p for k, some in enumerate(windows) for p in couple_minibatches(some, eps=0.5, seed=seeds[k])]
        assert len(found) == 7
        for ours, theirs in zip(found, truth, strict=True):
            assert all(torch.equal(p, q) for p, q in zip(ours[:3], theirs[:3], strict=True))
            assert ours.converged == 1.0

    def test_pairs_of_a_window_are_those_of_their_own_problem(self) -> None:
        batches = [(clouds(20 + k, 30 - k, seed=k)) for k in range(6)]
        for pairs, (x0, x1) in zip(couple_minibatches(batches, eps=0.3), batches, strict=True):
            assert len(pairs.x0) == len(x0)
            assert all((x0 == row).all(1).any() for row in pairs.x0)
            assert all((x1 == row).all(1).any() for row in pairs.x1)

    def test_coupling_shortens_paths(self) -> None:
        for pairs, (x0, x1, _) in zip(couple_minibatches(list(stream(4)), eps=0.1), stream(4), strict=True):
            assert (pairs.x0 - pairs.x1).square().sum(1).mean() < 0.7 * torch.cdist(x0, x1).square().mean()

    def test_the_coupled_batch_may_be_larger_than_the_training_batch(self) -> None:
        with CoupledBatches(stream(2, 70, 90), eps=0.5, batch_size=16) as coupled:
            sizes = [len(pairs.x0) for pairs in coupled]
        assert sizes == [16] * 8

    @pytest.mark.parametrize("labelled", [False, True])
    def test_classes_are_coupled_within(self, labelled: bool) -> None:
        x0, x1 = clouds(31, 33)
        target = torch.arange(33) % 3
        x1 = torch.cat([x1, target[:, None].float()], dim=1)
        source = torch.arange(31) % 3
        x0 = torch.cat([x0, source[:, None].float()], dim=1)
        batch = (x0, x1, target, source) if labelled else (x0, x1, target)
        (pairs,) = couple_minibatches([batch], eps=0.5, by_class=True)
        assert len(pairs.x0) == 31
        assert torch.equal(pairs.x1[:, 2].long(), pairs.label)
        shares = torch.bincount(pairs.label)
        assert (shares - 31 / 3).abs().max() <= 1
        if labelled:
            assert torch.equal(pairs.x0[:, 2], pairs.x1[:, 2])
        assert not torch.equal(pairs.label, pairs.label.sort().values), "classes are mixed"

    def test_errors_come_after_what_was_finished(self) -> None:
        def source() -> Any:
            yield from stream(5)
            raise OSError("the disk is gone")

        coupled = CoupledBatches(source(), eps=0.5, window=3)
        found = [next(coupled) for _ in range(5)]
        with pytest.raises(OSError, match="the disk is gone"):
            next(coupled)
        assert len(found) == 5
        assert list(coupled) == []

    def test_a_bad_minibatch_is_named(self) -> None:
        x0, x1 = clouds()
        with pytest.raises(ds.ProblemError, match=r"minibatch 1 cannot be coupled: INVALID: x\[0, 0\] is nan"):
            couple_minibatches([(x0, x1), (x0 * float("nan"), x1)], eps=0.5)
        with pytest.raises(ds.ProblemError, match=r"minibatch 0 must be \(x0, x1\).* got 1 entries; .*noise=torch"):
            couple_minibatches([(x0,)], eps=0.5)
        with pytest.raises(ds.ProblemError, match="minibatch 0 has no labels"):
            couple_minibatches([(x0, x1)], eps=0.5, by_class=True)
        with pytest.raises(ds.OptionsError, match="window must be an integer of at least 1, got 0"):
            CoupledBatches([], eps=0.5, window=0)

    def test_an_endless_source_is_closed(self) -> None:
        def endless() -> Any:
            while True:
                yield from stream(4)

        before = threading.active_count()
        with CoupledBatches(endless(), eps=0.5, window=2) as coupled:
            next(coupled)
        assert list(coupled) == []
        assert sum(thread.name == "coupled batches" for thread in threading.enumerate()) == 0
        assert threading.active_count() <= before + 2

    def test_unconverged_couplings_are_told(self) -> None:
        with pytest.warns(RuntimeWarning, match=r"2 of 2 couplings did not converge"):
            found = couple_minibatches(list(stream(2)), eps=1e-5, max_depth=2, rescue=False)
        assert [pairs.converged for pairs in found] == [0.0, 0.0]

    def test_eps_may_depend_on_the_minibatch(self) -> None:
        seen: list[float] = []

        def eps(x0: Any, x1: Any) -> float:
            seen.append(0.1 * float(torch.cdist(x0, x1).square().mean()))
            return seen[-1]

        couple_minibatches(list(stream(3)), eps=eps)
        assert len(seen) == 3

    def test_workers_share_the_minibatches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        data = CouplingDataset(lambda: stream(5), eps=0.5, window=2)
        whole = list(torch.utils.data.DataLoader(data, batch_size=None))
        assert len(whole) == 5
        found = []
        for worker in range(2):
            info = type("Info", (), {"id": worker, "num_workers": 2, "seed": 7 + worker})
            monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda info=info: info)
            found.append(list(data))
        assert [len(part) for part in found] == [3, 2]

    def test_epochs_and_seeds_draw_different_pairs(self) -> None:
        data = CouplingDataset(lambda: stream(3), eps=0.5, window=1)
        first, second = (torch.stack([pairs.x1 for pairs in data]) for _ in range(2))
        assert not any(torch.equal(p, q) for p, q in zip(first, second, strict=True))
        again = CouplingDataset(lambda: stream(3), eps=0.5, window=1)
        assert torch.equal(first, torch.stack([pairs.x1 for pairs in again]))
        same = [stream(1).__next__()] * 3
        zero, one = ([pairs.x1 for pairs in CoupledBatches(same, eps=0.5, window=1, seed=seed)] for seed in (0, 1))
        assert not any(torch.equal(p, q) for p in zero for q in one)

    def test_fresh_workers_draw_anew_every_epoch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = []
        for base in (7, 8):
            info = type("Info", (), {"id": 0, "num_workers": 1, "seed": base})
            monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda info=info: info)
            found.append(torch.stack([pairs.x1 for pairs in CouplingDataset(lambda: stream(2), eps=0.5)]))
        assert not torch.equal(*found)

    def test_the_rest_of_a_minibatch_is_carried_over(self) -> None:
        whole = list(CoupledBatches(stream(5, 20, 20), eps=0.5, window=2))
        for size in (16, 48):
            found = list(CoupledBatches(stream(5, 20, 20), eps=0.5, window=2, batch_size=size))
            assert [len(pairs.x0) for pairs in found] == [size] * (100 // size)
            for part in range(3):
                expected = torch.cat([pairs[part] for pairs in whole])[: size * len(found)]
                assert torch.equal(torch.cat([pairs[part] for pairs in found]), expected)

    def test_too_few_pairs_for_one_batch_say_so(self) -> None:
        with pytest.raises(ds.ProblemError, match="batch_size is 64, but all minibatches together gave 40 pairs"):
            list(CoupledBatches(stream(2, 20, 20), eps=0.5, batch_size=64))
        assert list(CoupledBatches([], eps=0.5, batch_size=64)) == []

    def test_a_forgotten_iterator_ends_its_thread(self) -> None:
        coupled = CoupledBatches(itertools.cycle(list(stream(2))), eps=0.5, window=1)
        next(coupled)
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "coupled batches"]
        del coupled
        gc.collect()
        thread.join(30)
        assert not thread.is_alive()

    def test_the_interpreter_ends_in_the_midst_of_a_window(self) -> None:
        code = """
import itertools, torch
from drainsinkhorn.flow import CoupledBatches
coupled = CoupledBatches(itertools.repeat((torch.randn(300, 2), torch.randn(300, 2))), eps=0.05, window=8)
next(coupled)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    def test_classes_that_do_not_meet(self) -> None:
        x0, x1 = clouds(6, 6)
        target, source = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 0, 1, 1, 2, 2])
        with pytest.raises(ds.ProblemError, match=r"sources of the classes \[2, 3\].* none in common"):
            couple_minibatches([(x0, x1, target % 2, source % 2 + 2)], eps=0.5, by_class=True)
        with pytest.warns(RuntimeWarning, match="2 sources are of classes that have no targets"):
            (pairs,) = couple_minibatches([(x0, x1, target, source)], eps=0.5, by_class=True)
        assert len(pairs.x0) == 4
        with pytest.raises(ds.ProblemError, match=r"labels of shape \(5,\) for 6 targets"):
            couple_minibatches([(x0, x1, target[:5])], eps=0.5, by_class=True)

    def test_other_than_tensors_are_refused(self) -> None:
        x0, x1 = clouds(6, 6)
        with pytest.raises(ds.ProblemError, match="label of minibatch 0 must be a torch tensor, got list; write"):
            couple_minibatches([(x0, x1, list("aabbcc"))], eps=0.5, by_class=True)
        with pytest.raises(ds.ProblemError, match="x1 of minibatch 0 must be a torch tensor, got ndarray"):
            couple_minibatches([(x0, x1.numpy())], eps=0.5)
        for verb in ("sample_plan", "get_map"):
            with pytest.raises(ds.ProblemError, match="x0 must be a torch tensor, got ndarray"):
                getattr(OTPlanSampler("sinkhorn", reg=0.5), verb)(x0.numpy(), x1)
