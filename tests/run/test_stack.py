"""Stacks of problems: solved as columns, equal to the bit to the same problems one by one."""

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.instances import InstanceStack, are_same, each, join, strengths, take
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.stack import ProblemStack, split_arrays, validate_stack

WIDTH = 12
rng = np.random.default_rng(5)
X, Y = rng.normal(size=(WIDTH, 20, 2)), rng.normal(size=(WIDTH, 25, 2)) + 0.3
EPS = np.linspace(0.05, 1.0, WIDTH)
INPUTS = {
    "stacked": (X, Y, 0.3),
    "eps by problem": (X, Y, EPS),
    "shared x": (X[0], Y, 0.3),
    "shared clouds": (X[0], Y[0], EPS),
    "float32": (X.astype(np.float32), Y.astype(np.float32), EPS),
}


def stack_of(x, y, eps) -> InstanceStack:
    columns = dict.fromkeys(("a", "b", "tol", "init", "chain", "batch", "rho", "max_depth"))
    problems = split_arrays(x, y, eps=eps, cost="sqeuclidean", **columns)
    assert isinstance(problems, ProblemStack)
    stack = validate_stack(problems, 1e-3, 1.0, "auto")
    assert stack is not None
    return stack


def assert_equal(first: Solution, second: Solution) -> None:
    for one, other in zip(first, second, strict=True):
        for side, same in zip(one.potentials, other.potentials, strict=True):
            assert side.dtype == same.dtype
            np.testing.assert_array_equal(side, same)
        assert (one.residual, one.depth, one.status) == (other.residual, other.depth, other.status)
        assert (one.eps, one.widened, one.ticket) == (other.eps, other.widened, other.ticket)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("options", [{}, {"width": 3}, {"mode": "static"}, {"order": "grouped"}, {"max_depth": 4}])
def test_a_stack_is_solved_as_its_problems_one_by_one(backend: str, name: str, options: dict):
    x, y, eps = INPUTS[name]
    start = {"init": "zero"} if name == "shared clouds" else {}
    options = {"rescue": False, "warn": False, **options}
    together = ds.solve(x, y, eps=eps, backend=backend, **options)
    problems = [ds.Problem(x=p.x, y=p.y, eps=float(p.eps), **start) for p in ds.problems(x, y, eps=eps)]
    # An iterator is read one by one.
    alone = ds.solve(iter(problems), backend=backend, **options)
    assert_equal(together, alone)


def test_no_problem_becomes_an_object_until_it_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    made = []
    for kind in (InstanceStack, ProblemStack):
        get = kind.__getitem__

        def counted(self, place, get=get):
            made.append(place)
            return get(self, place)

        monkeypatch.setattr(kind, "__getitem__", counted)
    counts = []
    for width in (16, 256):
        x = np.random.default_rng(0).normal(size=(width, 6, 2))
        made.clear()
        solution = ds.solve(x, x + 0.5, eps=0.5, backend="cpu", recheck="none")
        counts.append(len([place for place in made if not isinstance(place, slice)]))
        assert solution.converged
        assert solution.potentials.f.shape == (width, 6)
    assert counts[0] == counts[1] <= 16
    result = solution[200]
    assert result.problem.x is not None
    np.testing.assert_array_equal(result.problem.x, x[200])


def test_stacked_potentials_are_a_copy_in_the_order_of_submission():
    solution = ds.solve(X, Y, eps=EPS, backend="cpu", width=3)
    f, g = solution.potentials
    for ticket, result in enumerate(solution):
        np.testing.assert_array_equal(f[ticket], result.potentials.f)
        np.testing.assert_array_equal(g[ticket], result.potentials.g)
    f[:] = 0
    assert np.abs(solution[0].potentials.f).max() > 0
    whole = ds.solve(X, Y, eps=0.5, backend="cpu")
    whole.potentials.f[:] = 0
    assert np.abs(whole[0].potentials.f).max() > 0


def test_a_changed_list_of_problems_is_solved_as_it_is_now():
    problems = ds.problems(X, Y, eps=0.5)
    assert isinstance(problems, list)
    assert len(problems) == WIDTH
    problems[3] = ds.Problem(x=X[0], y=Y[1], eps=0.9)
    problems.append(ds.Problem(x=X[5], y=Y[5], eps=0.5))
    solution = ds.solve(problems, backend="cpu")
    assert len(solution) == WIDTH + 1
    assert solution[3].eps == 0.9
    np.testing.assert_array_equal(solution[5].potentials.f, solution[WIDTH].potentials.f)


class TestInstanceStack:
    def test_an_instance_is_the_same_object_at_every_call(self):
        stack = stack_of(X, Y, EPS)
        part = stack[3:9].take([1, 4])
        assert part[0] is stack[4]
        assert part[1] is stack[7]
        np.testing.assert_array_equal(part[1].x, X[7])
        assert part[1].eps == EPS[7]
        assert strengths(part) == [EPS[4], EPS[7]]

    def test_parts_of_one_stack_join_as_columns(self):
        stack = stack_of(X, Y, EPS)
        joined = join(stack[2:4], stack[7:8])
        assert isinstance(joined, InstanceStack)
        assert list(joined.rows) == [2, 3, 7]
        other = stack_of(X, Y, EPS)
        mixed = join(stack[:1], other[:1])
        assert not isinstance(mixed, InstanceStack)
        assert mixed[0] is stack[0]
        assert mixed[1] is other[0]

    def test_the_same_row_of_another_stack_is_another_instance(self):
        stack, other = stack_of(X, Y, EPS), stack_of(X, Y, EPS)
        assert are_same(stack[:3], stack.take([0, 2, 2])) == [True, False, True]
        assert are_same(stack[:2], other[:2]) == [False, False]
        assert are_same(stack[:2], [stack[0], stack[0]]) == [True, False]

    def test_values_are_computed_once(self):
        seen = []
        values = each(stack_of(X, Y, EPS), lambda instance: seen.append(instance) or instance.tol)
        assert values == [1e-3] * WIDTH
        assert len(seen) == 1
        assert len(take(stack_of(X, Y, EPS), [5])) == 1


def test_a_state_returned_for_a_wrong_row_is_noticed(monkeypatch: pytest.MonkeyPatch):
    from drainsinkhorn.backends.cpu.pack import CpuPack

    emit = CpuPack.emit

    def swapped(self, lanes):
        emission = emit(self, lanes)
        return emission._replace(instances=emission.instances.take([1, 0, *range(2, len(lanes))]))

    monkeypatch.setattr(CpuPack, "emit", swapped)
    with pytest.raises(ds.ContractError, match="emit returned the state of problem"):
        ds.solve(X, Y, eps=0.5, backend="cpu")


def test_backends_receive_a_stack_as_columns():
    received = []

    class Spy:
        def __init__(self, inner: Backend) -> None:
            self._inner = inner

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def using(self, acceleration):
            return Spy(self._inner.using(acceleration))

        def pack(self, instances):
            received.append(instances)
            return self._inner.pack(instances)

    from drainsinkhorn.backends import load

    solution = ds.solve(X, Y, eps=0.5, backend=Spy(load("cpu")))
    assert solution.converged
    assert [type(each) for each in received] == [InstanceStack]
