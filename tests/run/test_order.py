"""Order of work: by predicted depth, grouped or mixed. It changes slots of static windows, never a result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

import drainsinkhorn as ds
from drainsinkhorn.core.options import ORDERS
from drainsinkhorn.core.source import Admission
from drainsinkhorn.numerics.depth import predicted_depth
from drainsinkhorn.run.queue import Policy
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing.scripted import Script, scripted
from drainsinkhorn.workloads.clouds import problems
from tests.run.gate import ScriptedGate


def admissions(depths: list[int]) -> list[Admission]:
    return [Admission(ticket, scripted(depth)) for ticket, depth in enumerate(depths)]


def depth_of(problem: ds.Problem[Any]) -> float:
    return problem.x.depth  # type: ignore[union-attr]


class TestOrdered:
    def test_grouped_is_deepest_first(self) -> None:
        line = Policy(order="grouped", predict_depth=depth_of).arrange(admissions([3, 9, 1, 9, 5]), 2)
        assert [admission.ticket for admission in line] == [1, 3, 4, 0, 2]

    def test_mixed_gives_every_window_some_of_each(self) -> None:
        line = Policy(order="mixed", predict_depth=depth_of).arrange(admissions([1, 2, 3, 4, 5, 6]), 3)
        assert [depth_of(admission.instance) for admission in line] == [6, 4, 2, 5, 3, 1]

    @given(st.lists(st.integers(1, 50), max_size=40), st.sampled_from(ORDERS[1:]), st.integers(1, 9))
    def test_nobody_is_lost(self, depths: list[int], order: str, width: int) -> None:
        line = Policy(order=order, predict_depth=depth_of).arrange(admissions(depths), width)
        assert sorted(admission.ticket for admission in line) == list(range(len(depths)))


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 30)), max_size=60),
    st.sampled_from(ORDERS),
    st.sampled_from([1, 5, math.inf]),
    st.integers(1, 7),
)
def test_every_order_serves_everything_once(
    made: list[tuple[str, int]], order: str, lookahead: float, width: int
) -> None:
    scripts = (scripted(Script(depth, shape=shape)) for shape, depth in made)
    queue = ScriptedGate(scripts, Policy(lookahead, order, depth_of)).queue
    served: list[int] = []
    for _, line in queue.lines():
        while taken := line.take(width):
            assert len({made[admission.ticket][0] for admission in taken}) == 1
            served += [admission.ticket for admission in taken]
    assert sorted(served) == list(range(len(made)))


def test_an_endless_source_is_ordered_block_by_block() -> None:
    def endless() -> Iterator[ds.Problem[Any]]:
        for depth in range(10**9):
            yield scripted(depth + 1)

    queue = ScriptedGate(endless(), Policy(6, "grouped", depth_of)).queue
    _, line = next(queue.lines())
    assert [admission.ticket for _ in range(4) for admission in line.take(3)] == [5, 4, 3, 2, 1, 0, 11, 10, 9, 8, 7, 6]


class TestRuns:
    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("mode", ["compact", "stream", "width-one"])
    def test_no_order_changes_a_result(self, order: str, mode: str) -> None:
        batch = problems(0)
        truth = ds.solve(batch)
        for found in ds.solve(batch, order=order, mode=mode, width=8), sorted_stream(batch, order, mode):
            assert [r.depth for r in found] == [r.depth for r in truth]
            assert all(np.array_equal(r.potentials.f, s.potentials.f) for r, s in zip(found, truth, strict=True))

    def test_static_windows_pad_least_when_grouped(self) -> None:
        """The paper's M3: the same problems and the same work, in other windows."""
        slots = {
            order: ds.solve(problems(0), mode="compact", width=8, order=order).ledger.static_slots for order in ORDERS
        }
        needed = ds.solve(problems(0), mode="compact", width=8).ledger.slots
        assert needed < slots["grouped"] < 0.75 * slots["mixed"]
        assert slots["grouped"] < slots["given"]

    def test_an_order_that_is_none(self) -> None:
        with pytest.raises(ds.OptionsError, match="order must be one of"):
            ds.Options(order="random")


def sorted_stream(batch: list[ds.Problem[Any]], order: str, mode: str) -> list[ds.Result[Any]]:
    return sorted(ds.stream(iter(batch), order=order, mode=mode, width=8, lookahead=20), key=lambda r: r.ticket)


class TestPrediction:
    @pytest.mark.parametrize("accelerate", ["momentum", "none"])
    def test_it_ranks_problems_by_depth(self, accelerate: str) -> None:
        batch, momentum = problems(3), accelerate == "momentum"
        foretold = [predicted_depth(validate(problem, 1e-3), momentum=momentum) for problem in batch]
        reached = [result.depth for result in ds.solve(batch, accelerate=accelerate)]
        assert spearmanr(foretold, reached).statistic > 0.9
        assert 1 / 4 < np.median(np.array(foretold) / reached) < 4

    @pytest.mark.parametrize(
        "problem",
        [
            ds.Problem(x=np.zeros((3, 2)), y=np.ones((4, 2)), eps=1.0),
            ds.Problem(x=np.array([[1e200]]), y=np.array([[-1e200]]), eps=1e-300),
            ds.Problem(x=np.array([[1e200], [0.0]]), y=np.array([[-1e200], [1.0]]), eps=1e-300),
            ds.Problem(cost=np.zeros((3, 4)), eps=1.0),
            ds.Problem(cost=np.ones((1, 1)), eps=1e300),
            ds.Problem(x=np.eye(70), y=2 * np.eye(70), eps=0.1, cost="cosine"),
            ds.Problem(x=np.eye(70), y=2 * np.eye(70), eps=0.1),
        ],
    )
    def test_odd_problems_have_one_too(self, problem: ds.Problem[Any]) -> None:
        assert 1 <= predicted_depth(validate(problem, 1e-3), momentum=False) < math.inf
