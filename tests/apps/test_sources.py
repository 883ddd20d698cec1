"""Sources of minibatches: loaders, lists, functions and noise, epoch after epoch, and in workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import drainsinkhorn as ds
from tests.conftest import needs

torch = needs("torch")

from drainsinkhorn.flow import CoupledBatches, CouplingDataset  # noqa: E402

POINTS = torch.arange(48.0)[:, None] + torch.tensor([0.0, 0.5])
LABELS = torch.arange(48)


def loader(*tensors: Any, size: int = 8, **settings: Any) -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*tensors), batch_size=size, **settings)


def epoch(dataset: Any) -> list[Any]:
    return list(dataset)


def targets(pairs: list[Any]) -> Any:
    return torch.stack([each.x1 for each in pairs])


def shuffled(**settings: Any) -> Any:
    settings = {"noise": torch.randn_like, "eps": 1.0, "window": 2} | settings
    return CouplingDataset(loader(POINTS, LABELS, shuffle=True), **settings)


def same(first: list[Any], second: list[Any]) -> bool:
    tensors = [[tensor for pairs in each for tensor in pairs[:3] if tensor is not None] for each in (first, second)]
    return len(tensors[0]) == len(tensors[1]) and all(map(torch.equal, *tensors))


class TestEpochs:
    def test_a_loader_of_targets_and_noise(self) -> None:
        torch.manual_seed(0)
        dataset = shuffled()
        first, second = epoch(dataset), epoch(dataset)
        assert [len(pairs.x0) for pairs in first] == [8] * 6
        for pairs in (*first, *second):
            assert torch.equal(pairs.x1, POINTS[pairs.label])
            assert pairs.x0.abs().max() < 10
        assert not torch.equal(targets(first), targets(second)), "every epoch is shuffled anew"
        torch.manual_seed(0)
        again = shuffled()
        assert same(epoch(again), first)
        assert same(epoch(again), second)
        torch.manual_seed(1)
        assert not same(epoch(shuffled()), first)

    def test_an_epoch_has_every_target(self) -> None:
        seen: list[Any] = []

        def record(x1: Any) -> Any:
            seen.append(x1)
            return torch.randn_like(x1)

        dataset = CouplingDataset(loader(POINTS, size=10, shuffle=True), noise=record, eps=1.0)
        assert [len(pairs.x0) for pairs in dataset] == [10, 10, 10, 10, 8]
        assert sorted(torch.cat(seen)[:, 0].tolist()) == POINTS[:, 0].tolist()

    def test_lists_functions_and_pairs_of_loaders_give_the_same(self) -> None:
        x0 = POINTS - 3
        minibatches = list(loader(x0, POINTS))
        settings = {"eps": 1.0, "window": 4}

        def make() -> Iterator[Any]:
            yield from minibatches

        def sources() -> Iterator[Any]:
            yield from loader(x0)

        truth = epoch(CouplingDataset(minibatches, **settings))
        for dataset in (
            CouplingDataset(loader(x0, POINTS), **settings),
            CouplingDataset(make, **settings),
            CouplingDataset(lambda: iter(minibatches), **settings),
            CouplingDataset(make(), **settings),
            CouplingDataset((loader(x0), loader(POINTS)), **settings),
            CouplingDataset(loader(POINTS), noise=loader(x0), **settings),
            CouplingDataset(loader(POINTS), noise=sources, **settings),
            CouplingDataset([x1 for (x1,) in loader(POINTS)], noise=lambda x1: x1 - 3, **settings),
            CouplingDataset((lambda x1: x1 - 3, loader(POINTS)), **settings),
        ):
            assert same(epoch(dataset), truth)

    def test_labels_of_both_loaders_are_kept(self) -> None:
        parity = LABELS % 2
        dataset = CouplingDataset((loader(POINTS, parity), loader(POINTS, parity)), eps=1.0, by_class=True)
        for pairs in dataset:
            assert torch.equal((pairs.x0[:, 0] % 2).long(), pairs.label)
            assert torch.equal((pairs.x1[:, 0] % 2).long(), pairs.label)

    def test_the_shorter_of_two_loaders_ends_an_epoch(self) -> None:
        assert len(epoch(CouplingDataset((loader(POINTS), loader(POINTS[:24])), eps=1.0))) == 3

    def test_an_iterator_serves_for_one_epoch(self) -> None:
        for dataset in (
            CouplingDataset((batch for batch in loader(POINTS, POINTS)), eps=1.0),
            CouplingDataset(loader(POINTS), noise=iter([POINTS[:8]] * 6), eps=1.0),
        ):
            assert len(epoch(dataset)) == 6
            with pytest.raises(ds.ProblemError, match=r"is a \w+, which can be read only once.* pass a DataLoader"):
                epoch(dataset)

    def test_through_a_loader_in_this_process(self) -> None:
        torch.manual_seed(0)
        first = epoch(torch.utils.data.DataLoader(shuffled(), batch_size=None))
        torch.manual_seed(0)
        assert same(epoch(torch.utils.data.DataLoader(shuffled(), batch_size=None)), first)


class TestBadSources:
    def test_no_source(self) -> None:
        for source in (3, POINTS, torch.utils.data.TensorDataset(POINTS)):
            with pytest.raises(ds.ProblemError, match=r"source must make minibatches, got \w+; pass a DataLoader"):
                CouplingDataset(source, eps=1.0)
        with pytest.raises(ds.ProblemError, match="source must return an iterable of minibatches, got int"):
            epoch(CouplingDataset(lambda: 3, eps=1.0))
        with pytest.raises(ds.ProblemError, match="x0 cannot come from noise= as well"):
            CouplingDataset((loader(POINTS), loader(POINTS)), noise=torch.randn_like, eps=1.0)

    def test_labels_are_not_read_as_points(self) -> None:
        with pytest.raises(ds.ProblemError, match=r"minibatch 0 .*if it is \(x1, label\), pass noise=torch.randn_like"):
            epoch(CouplingDataset(loader(POINTS, LABELS), eps=1.0))

    def test_minibatches_of_another_form(self) -> None:
        with pytest.raises(ds.ProblemError, match=r"x1 of minibatch 0 must be a tensor, .* got 3 entries"):
            epoch(CouplingDataset(loader(POINTS, POINTS, LABELS), noise=torch.randn_like, eps=1.0))
        with pytest.raises(ds.ProblemError, match=r"x1 of minibatch 0 must be a tensor, .* got dict"):
            epoch(CouplingDataset([{"image": POINTS}], noise=torch.randn_like, eps=1.0))
        with pytest.raises(ds.ProblemError, match="x0 of minibatch 0 must be a torch tensor, got int"):
            epoch(CouplingDataset(loader(POINTS), noise=len, eps=1.0))


class TestWorkers:
    @pytest.fixture
    def in_worker(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        def become(worker: int, workers: int, base: int = 7) -> None:
            info = type("Info", (), {"id": worker, "num_workers": workers, "seed": base + worker})
            monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: info)
            torch.manual_seed(base + worker)

        return become

    def test_workers_share_a_shuffled_epoch(self, in_worker: Any) -> None:
        seen: list[Any] = []

        def record(x1: Any) -> Any:
            seen.append(x1)
            return torch.randn_like(x1)

        noises = []
        for worker in range(2):
            in_worker(worker, 2)
            noises.append(torch.stack([pairs.x0 for pairs in shuffled(noise=record)]))
        assert sorted(torch.cat(seen)[:, 0].tolist()) == POINTS[:, 0].tolist(), "every target once"
        assert not torch.equal(*noises), "every worker draws noise of its own"

    def test_reading_leaves_other_draws_of_a_worker_alone(self, in_worker: Any) -> None:
        in_worker(0, 2)
        expected = torch.rand(3)
        in_worker(0, 2)
        assert len(epoch(shuffled(noise=torch.zeros_like))) == 3
        assert torch.equal(torch.rand(3), expected)

    def test_workers_within_workers(self, in_worker: Any) -> None:
        in_worker(0, 2)
        with pytest.raises(ds.ProblemError, match=r"source is a DataLoader with 2 workers.* pass num_workers=0"):
            epoch(CouplingDataset(loader(POINTS, POINTS, num_workers=2), eps=1.0))

    def test_no_group_in_a_worker(self, in_worker: Any) -> None:
        in_worker(0, 2)
        with pytest.raises(ds.ProblemError, match="not in a worker of a DataLoader; use num_workers=0"):
            epoch(shuffled(group="world"))


class TestReading:
    """Minibatches are read in the caller's thread, where global generators are."""

    def test_runs_are_repeatable_under_torch_s_seed(self) -> None:
        def minibatches() -> Iterator[Any]:
            for _ in range(40):
                yield torch.randn(4, 2), torch.randn(4, 2) + 3

        def train() -> Any:
            torch.manual_seed(0)
            with CoupledBatches(minibatches(), eps=0.5, window=3) as coupled:
                return torch.cat([torch.cat([pairs.x0, torch.rand(4, 1)], dim=1) for pairs in coupled])

        first = train()
        assert first.shape == (160, 3)
        assert all(torch.equal(train(), first) for _ in range(2))

    @pytest.mark.parametrize(("window", "ahead"), [(3, 1), (3, 2), (1, 1), (50, 1)])
    def test_a_thread_couples_what_the_caller_reads_ahead(self, window: int, ahead: int) -> None:
        counts, threads = [0], set()

        def minibatches() -> Iterator[Any]:
            for _ in range(30):
                counts.append(counts[-1] + 1)
                threads.add(threading.current_thread())
                yield POINTS[:4], POINTS[:4]

        coupled = CoupledBatches(minibatches(), eps=1.0, window=window, ahead=ahead)
        assert counts[-1] == 0, "nothing is read before the first is needed"
        for used in range(30):
            next(coupled)
            assert counts[-1] == min(used + min(window + used, window * (ahead + 1)), 30)
        assert list(coupled) == []
        assert threads == {threading.current_thread()}

    def test_reading_that_was_interrupted_loses_nothing(self) -> None:
        class Interrupting:
            def __init__(self) -> None:
                self.reads = 0

            def __iter__(self) -> Any:
                return self

            def __next__(self) -> Any:
                self.reads += 1
                if self.reads == 5:
                    raise KeyboardInterrupt
                if self.reads > 9:
                    raise StopIteration
                return POINTS[:4] + self.reads, POINTS[:4]

        coupled, pairs = CoupledBatches(Interrupting(), eps=1.0, window=2), []
        while len(pairs) < 4:
            try:
                pairs.append(next(coupled))
            except KeyboardInterrupt:
                interrupted = len(pairs)
        assert interrupted < 4
        assert len(pairs + list(coupled)) == 8
