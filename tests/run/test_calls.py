"""The forms in which problems may be handed in, the same everywhere; seeds; progress; points outside of a problem."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import drainsinkhorn as ds
from drainsinkhorn.parallel import LocalFleet
from drainsinkhorn.run import progress
from tests.conftest import needs

RNG = np.random.default_rng(0)
CLOUDS = [(RNG.normal(size=(n, 2)), RNG.normal(size=(m, 2))) for n, m in ((8, 9), (12, 7), (6, 6))]
SETTINGS: dict[str, Any] = {"backend": "reference", "tol": 1e-6}


def same(one: ds.Result[Any], other: ds.Result[Any]) -> bool:
    return np.array_equal(one.potentials.f, other.potentials.f) and np.array_equal(one.potentials.g, other.potentials.g)


@pytest.fixture(scope="module")
def wanted() -> ds.Solution[Any]:
    return ds.solve([ds.Problem(x=x, y=y, eps=0.5) for x, y in CLOUDS], **SETTINGS)


def test_streams_take_pairs(wanted: ds.Solution[Any]) -> None:
    def generated() -> Iterator[Any]:
        yield from CLOUDS

    for source in (CLOUDS, generated(), [list(pair) for pair in CLOUDS]):
        results = list(ds.stream(source, eps=0.5, **SETTINGS))
        assert len(results) == 3
        assert all(same(result, wanted[result.ticket]) for result in results)
    assert all(map(same, ds.solve(CLOUDS, eps=0.5, **SETTINGS), wanted))
    (euclidean,) = ds.stream(CLOUDS[:1], eps=0.5, cost="euclidean", **SETTINGS)
    assert not same(euclidean, wanted[0])


def test_streams_take_points(wanted: ds.Solution[Any]) -> None:
    xs, ys = zip(*CLOUDS, strict=True)
    results = list(ds.stream(list(xs), list(ys), eps=0.5, **SETTINGS))
    assert all(same(result, wanted[result.ticket]) for result in results)
    weights = [RNG.dirichlet(np.ones(len(x))) for x in xs]
    weighted = ds.solve(list(xs), list(ys), eps=0.5, a=weights, **SETTINGS)
    for result in ds.stream(list(xs), list(ys), eps=0.5, a=weights, **SETTINGS):
        assert same(result, weighted[result.ticket])


def test_a_pair_among_problems_and_what_is_neither() -> None:
    mixed = [CLOUDS[0], ds.Problem(x=CLOUDS[1][0], y=CLOUDS[1][1]), 7]
    statuses = [result.status.name for result in ds.solve(mixed, backend="reference", warn=False)]
    assert statuses == ["CONVERGED", "CONVERGED", "INVALID"]


@pytest.mark.parametrize("lazily", [False, True])
def test_fields_of_problems_are_theirs(lazily: bool) -> None:
    problems = [ds.Problem(x=x, y=y, eps=0.5) for x, y in CLOUDS]
    with pytest.raises(ds.ProblemError, match=r"eps belongs to each Problem when problems are passed: Problem\(eps="):
        list(ds.stream(iter(problems) if lazily else problems, eps=1.0, **SETTINGS))
    with pytest.raises(ds.ProblemError, match="a belongs to each Problem"):
        list(ds.stream(iter(CLOUDS) if lazily else CLOUDS, eps=1.0, a=np.ones(8), **SETTINGS))


def test_clients_take_points(wanted: ds.Solution[Any]) -> None:
    x, y = CLOUDS[0]
    with ds.Client(**SETTINGS) as client:
        assert same(client.submit(x, y, eps=0.5).result(), wanted[0])
        assert same(asyncio.run(client.solve(x, y, eps=0.5)), wanted[0])
        assert client.submit(x, y).result().eps == pytest.approx(ds.solve(x, y, **SETTINGS)[0].eps)
        with pytest.raises(ds.ProblemError, match="got x of type ndarray and no y"):
            client.submit(x)
        with pytest.raises(ds.ProblemError, match="eps belongs to each Problem"):
            client.submit(ds.Problem(x=x, y=y), eps=0.5)
        with pytest.raises(ds.ProblemError, match="a Problem has no 'reg'; it is eps here"):
            client.submit(x, y, reg=0.5)


def test_fleets_solve(wanted: ds.Solution[Any]) -> None:
    xs, ys = zip(*CLOUDS, strict=True)
    with LocalFleet(1) as fleet:
        solution = fleet.solve(list(xs), list(ys), eps=0.5, **SETTINGS)
        assert [result.ticket for result in solution] == [0, 1, 2]
        assert all(map(same, solution, wanted))
        assert solution.outcomes.tickets
        assert solution.ledger.slots == wanted.ledger.slots
        assert all(same(result, wanted[result.ticket]) for result in fleet.stream(CLOUDS, eps=0.5, **SETTINGS))


def test_samples_without_a_seed_differ(wanted: ds.Solution[Any]) -> None:
    first, second = (np.stack(wanted[0].sample(200)) for _ in range(2))
    assert not np.array_equal(first, second)
    one, other = (ds.sample(wanted, 200) for _ in range(2))
    assert not np.array_equal(one[0], other[0])
    assert not np.array_equal(*(ds.partners(wanted[0], np.zeros(200, dtype=int)) for _ in range(2)))


def test_seeds_may_be_generators(wanted: ds.Solution[Any]) -> None:
    torch = needs("torch")

    def draw(generator: Any) -> list[Any]:
        return [wanted[0].sample(50, seed=generator), ds.partners(wanted[0], [1, 2] * 20, seed=generator)]

    for make in (np.random.default_rng, torch.Generator().manual_seed):
        (pairs, partners), (again, partners_again) = draw(make(3)), draw(make(3))
        assert np.array_equal(pairs, again)
        assert np.array_equal(partners, partners_again)
        generator = make(3)
        assert not np.array_equal(draw(generator)[0], draw(generator)[0])
    with pytest.raises(ds.ProblemError, match="a generator of torch or NumPy, or None, got 'x'"):
        wanted[0].sample(5, seed="x")


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("side", ["row", "col"])
def test_the_map_at_other_points(backend: str, side: str) -> None:
    (x, y), eps = CLOUDS[0], 0.5
    weights = RNG.dirichlet(np.ones(9))
    result = ds.solve([ds.Problem(x=x, y=y, b=weights, eps=ds.relative(0.1))], backend=backend, tol=1e-6)[0]
    own, other = (x, y) if side == "row" else (y, x)
    assert np.allclose(result.map(own, side), result.barycentric_map(side))
    points, eps = RNG.normal(size=(5, 2)), result.eps
    known, mass = (result.potentials.g, weights) if side == "row" else (result.potentials.f, np.full(8, 1 / 8))
    cost = ((points[:, None] - other[None]) ** 2).sum(-1)
    terms = mass * np.exp((known - cost) / eps)
    expected = terms @ other / terms.sum(1, keepdims=True)
    assert np.allclose(result.map(points, side), expected)
    assert np.allclose(ds.map_points([result, result], [points, points[:2]], side)[1], expected[:2])


def test_bad_points_are_named(wanted: ds.Solution[Any]) -> None:
    result = wanted[0]
    with pytest.raises(ds.ProblemError, match="x has dimension 1 and y has 2"):
        result.map(np.zeros((3, 1)))
    with pytest.raises(ds.ProblemError, match=r"x\[1, 0\] is nan"):
        result.map(np.array([[0.0, 0.0], [np.nan, 0.0]]))
    with pytest.raises(ds.ProblemError, match='side must be "row" or "col"'):
        result.map(np.zeros((3, 2)), "both")
    dense = ds.solve([ds.Problem(cost=np.eye(3), eps=0.5)], backend="reference")[0]
    with pytest.raises(ds.ProblemError, match="a dense cost says nothing of other points"):
        dense.map(np.zeros((3, 2)))


def test_partners_of_other_points_follow_their_conditional_distribution(wanted: ds.Solution[Any]) -> None:
    (_, y), result = CLOUDS[0], wanted[0]
    point = np.array([[0.3, -0.2]])
    drawn = ds.partners(result, np.repeat(point, 40_000, axis=0), seed=1)
    terms = np.exp((result.potentials.g - ((point - y) ** 2).sum(1)) / 0.5)
    assert np.allclose(np.bincount(drawn, minlength=9) / 40_000, terms / terms.sum(), atol=0.012)
    both = ds.partners(wanted[:2], [point, CLOUDS[1][0]], seed=1)
    assert [len(each) for each in both] == [1, 12]
    # The points of the problem draw what their indices draw.
    assert np.array_equal(both[1], ds.partners(wanted[1], np.arange(12), seed=1))


def test_torch_points_move_as_torch_points() -> None:
    torch = needs("torch")
    x, y = (torch.tensor(cloud, dtype=torch.float32) for cloud in CLOUDS[0])
    result = ds.solve([ds.Problem(x=x, y=y, eps=0.5)], backend="reference")[0]
    moved = result.map(x)
    assert (moved.dtype, moved.shape) == (torch.float32, x.shape)
    assert torch.allclose(moved, result.barycentric_map())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    shown = Terminal()

    def make_bar(count: int | None, max_depth: int) -> progress.Bar:
        return progress.Bar(Console(file=shown, force_terminal=True, width=100), count, max_depth=max_depth)

    monkeypatch.setattr(progress, "make_bar", make_bar)
    return shown


def test_a_bar_on_request(terminal: Terminal) -> None:
    ds.solve(CLOUDS, eps=0.5, **SETTINGS)
    assert terminal.getvalue() == ""
    events: list[Any] = []
    ds.solve([*CLOUDS, 7], progress=True, observe=events.append, warn=False, **SETTINGS)
    assert "4/4" in terminal.getvalue(), "an INVALID problem counts, so that the bar adds up"
    assert events, "the caller's observer is called too"


def test_a_bar_of_a_stream_whose_end_is_unknown(terminal: Terminal) -> None:
    stream = ds.stream(iter(CLOUDS), eps=0.5, progress=True, **SETTINGS)
    assert terminal.getvalue() == "", "nothing is shown before the stream is read"
    assert len(list(stream)) == 3
    assert "3/?" in terminal.getvalue()
    abandoned = ds.stream(iter(CLOUDS), eps=0.5, progress=True, **SETTINGS)
    next(abandoned)
    assert abandoned._session._bar._progress.live.is_started
    abandoned.close()
    assert not abandoned._session._bar._progress.live.is_started


def test_nothing_is_shown_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    ds.solve(CLOUDS, eps=0.5, progress=True, **SETTINGS)
    assert capfd.readouterr() == ("", "")


class TestDepthLimits:
    """Each problem may have a depth limit of its own."""

    EPS = 0.002

    def check(self, solution: ds.Solution[Any], limits: list[int]) -> None:
        assert [result.status for result in solution] == [ds.Status.DEPTH_LIMIT] * len(limits)
        assert [result.depth for result in solution] == limits

    @pytest.mark.parametrize("backend", ["reference", "cpu"])
    @pytest.mark.parametrize("mode", ["static", "compact", "mask", "width-one"])
    def test_lists_arrays_and_fields_are_alike(self, backend: str, mode: str) -> None:
        x, y = RNG.normal(size=(3, 12, 2)), RNG.normal(size=(3, 9, 2))
        settings: Any = {"backend": backend, "mode": mode, "rescue": False, "warn": False, "accelerate": "none"}
        limits = [3, 11, 5]
        self.check(ds.solve(x, y, eps=self.EPS, max_depth=limits, **settings), limits)
        self.check(ds.solve(x, y, eps=self.EPS, max_depth=np.array(limits), **settings), limits)
        made = [ds.Problem(x=x[i], y=y[i], eps=self.EPS, max_depth=limits[i]) for i in range(3)]
        self.check(ds.solve(made, max_depth=100, **settings), limits)

    def test_a_limit_changes_no_other_problem(self) -> None:
        x, y = RNG.normal(size=(4, 12, 2)), RNG.normal(size=(4, 9, 2))
        usual = ds.solve(x, y, eps=0.1, rescue=False)
        problems = ds.problems(x, y, eps=0.1, max_depth=[None, 2, None, None])
        some = ds.solve(problems, rescue=False, warn=False)
        assert some[1].status is ds.Status.DEPTH_LIMIT
        assert some[1].depth == 2
        for place in (0, 2, 3):
            assert some[place].depth == usual[place].depth
            assert np.array_equal(some[place].potentials.f, usual[place].potentials.f)

    @pytest.mark.parametrize("limit", [0, -1, 2.5, True, "3"])
    def test_no_other_limit_is_accepted(self, limit: Any) -> None:
        problem = ds.Problem(x=RNG.normal(size=(4, 2)), y=RNG.normal(size=(4, 2)), eps=1.0, max_depth=limit)
        (result,) = ds.solve([problem], warn=False)
        assert result.status is ds.Status.INVALID
        assert "max_depth must be a positive integer" in result.message
