"""Memory runs out at every verb and everywhere around them: nothing finished is lost, and no bit depends on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.backends.cpu.resources import MemoryBlock
from drainsinkhorn.backends.reference import ReferenceBackend
from drainsinkhorn.backends.wrapped import WrappedBackend, WrappedPack
from drainsinkhorn.cli.show import as_row
from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.executor import execute
from drainsinkhorn.core.forecast import Forecasts
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import Options
from drainsinkhorn.core.source import Admission, Batch
from drainsinkhorn.fleet import wire
from drainsinkhorn.numerics.memory import is_out_of_memory, memory_errors
from drainsinkhorn.run import extend as extend_module
from drainsinkhorn.run import stack as batch_module
from drainsinkhorn.run.journal import Journal
from drainsinkhorn.run.saved import write_solution
from drainsinkhorn.run.session import Session
from drainsinkhorn.testing.auditor import marginal_errors
from drainsinkhorn.testing.scripted import Script, ScriptedBackend, scripted
from tests.faulty import assert_same, batch, same

VERBS = ("pack", "advance", "screen", "verify", "emit", "freeze", "repack")


@dataclass
class Trouble:
    """When memory runs out: at these calls of a verb, counted over all packs; and how often idle memory was freed."""

    verb: str = ""
    calls: Sequence[int] = ()
    counts: Counter[str] = field(default_factory=Counter[str])
    released: int = 0

    def strike(self, verb: str) -> None:
        self.counts[verb] += 1
        if verb == self.verb and self.counts[verb] in self.calls:
            raise MemoryError(f"{verb} was to fail")


class FaultyPack(WrappedPack):
    def __init__(self, inner: Any, trouble: Trouble) -> None:
        super().__init__(inner)
        self.trouble = trouble

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Any:
        # Half way: what a pack holds after a failure is of no use.
        told = super().advance(cycles, stops, lockstep=lockstep)
        self.trouble.strike("advance")
        return told

    def screen(self, lanes: Sequence[int]) -> Any:
        self.trouble.strike("screen")
        return super().screen(lanes)

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Any:
        self.trouble.strike("verify")
        return super().verify(lanes, exact=exact)

    def emit(self, lanes: Sequence[int]) -> Any:
        self.trouble.strike("emit")
        return super().emit(lanes)

    def freeze(self, lanes: Sequence[int]) -> None:
        self.trouble.strike("freeze")
        super().freeze(lanes)

    def repack(self, keep: Sequence[int], admit: Sequence[Any] = ()) -> None:
        self.trouble.strike("repack")
        super().repack(keep, admit)


@dataclass(frozen=True)
class Faulty(WrappedBackend):
    """A backend that runs out of memory where it is told to."""

    trouble: Trouble = field(default_factory=Trouble)

    def pack(self, problems: Sequence[ds.Problem[Any]]) -> Any:
        self.trouble.strike("pack")
        return FaultyPack(self.inner.pack(problems), self.trouble)

    def precise(self) -> Faulty:
        return replace(self, inner=self.inner.precise())

    def release(self) -> None:
        self.trouble.released += 1
        self.inner.release()


MODES = ("width-one", "static", "mask", "compact", "stream")
calls = st.sets(st.integers(1, 12), min_size=1, max_size=4)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=9),
    st.integers(1, 5),
    st.sampled_from(MODES),
    st.sampled_from(VERBS),
    calls,
)
def test_scripts_reach_their_depths_whatever_verb_runs_out(
    depths: list[int], width: int, mode: str, verb: str, strikes: set[int]
) -> None:
    trouble, ledger = Trouble(verb, sorted(strikes)), Ledger()
    source = Batch([Admission(t, scripted(depth)) for t, depth in enumerate(depths)])
    audit = Audit(every=3, screen="row" if verb == "screen" else "free")
    plan = Options(mode=mode, width=width, audit=audit, max_depth=50).plan(len(depths))
    backend = Faulty(ScriptedBackend(spare=1), trouble)
    retired = {r.ticket: r for event in execute(backend, source, plan, ledger) for r in event.outcomes}
    assert sorted(retired) == list(range(len(depths)))
    # A lane that fails alone, and again after memory was freed, and again as it streams, is refused.
    ran = {t: r for t, r in retired.items() if r.potentials is not None}
    assert len(ran) == len(depths) or len(strikes) >= 3
    # Static lanes wait for one another.
    assert all(r.depth == depths[t] or (mode == "static" and r.depth > depths[t]) for t, r in ran.items())
    assert {r.streamed for r in ran.values()} == {False} or len(strikes) >= 2
    # Each is in the account once, however often it was admitted.
    admitted = [ticket for _, _, tickets in ledger._queues for ticket in tickets]
    assert sorted(admitted) == sorted(ran)


def test_forecasts_forget_lanes_that_start_anew() -> None:
    forecasts, ledger = Forecasts(), Ledger()
    source = Batch([Admission(0, scripted(Script(40, start=1e6)))])
    backend = Faulty(ScriptedBackend(), Trouble("advance", [20]))
    plan = Options(mode="compact", width=1, audit=Audit(every=1), max_depth=90).plan(1)
    seen: list[int] = []

    def observe(event: Any) -> None:
        ledger(event)
        forecasts(event)
        seen.extend(lane.depth for lane in forecasts.lanes().values())

    assert [event.outcomes.depths for event in execute(backend, source, plan, observe)] == [[40]]
    assert seen.count(1) > 1, "it started anew"
    assert ledger.narrowed == 1


@pytest.fixture(scope="module")
def problems() -> list[ds.Problem[Any]]:
    return batch(7)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("verb", VERBS)
def test_every_result_is_there_to_the_bit(problems: list[ds.Problem[Any]], mode: str, verb: str) -> None:
    how: dict[str, Any] = {"mode": mode, "width": 4, "audit": ds.Audit(screen="row" if verb == "screen" else "free")}
    truth = ds.solve(problems, backend=ReferenceBackend(), **how)
    # Dense matrices cannot stream, so a lane that fails twice alone would be refused.
    for strikes in ([1], [2], [5]) if mode == "width-one" else ([1], [2], [1, 2], [3, 5]):
        trouble = Trouble(verb, strikes)
        ours = ds.solve(problems, backend=Faulty(ReferenceBackend(), trouble), **how)
        if mode == "static":
            # Which lanes wait for one another depends on the width.
            assert ours.converged
            assert all(max(marginal_errors(r.problem, r.potentials)) <= 1e-3 for r in ours)
        else:
            assert_same(list(ours), list(truth))
        struck = sum(call <= trouble.counts[verb] for call in strikes)
        # One strike may hit a rescue, which has a ledger of its own.
        assert trouble.released >= struck


def test_a_rescue_that_runs_out_is_run_again() -> None:
    problems = batch(3)
    truth = ds.solve(problems, backend=ReferenceBackend(), max_depth=6, warn=False)
    assert any(result.rescued for result in truth)
    total = Trouble()
    ds.solve(problems, backend=Faulty(ReferenceBackend(), total), max_depth=6, warn=False)
    late = total.counts["advance"]
    ours = ds.solve(problems, backend=Faulty(ReferenceBackend(), Trouble("advance", [late])), max_depth=6, warn=False)
    assert_same(list(ours), list(truth))


class NoRoom(ReferenceBackend):
    """There is never memory for problems of more than 30 points."""

    def pack(self, problems: Sequence[ds.Problem[Any]]) -> Any:
        if any(len(problem.a) > 30 for problem in problems):  # type: ignore[arg-type]
            raise MemoryError("no room for a matrix")
        return super().pack(problems)


def test_a_problem_without_memory_is_refused_with_its_size_and_the_rest_is_solved() -> None:
    problems = batch(8)
    large = [t for t, problem in enumerate(problems) if len(problem.x) > 30]  # type: ignore[arg-type]
    assert 0 < len(large) < 8
    truth = ds.solve(problems, backend=ReferenceBackend())
    with_room = ds.solve(problems, backend=NoRoom(), warn=False)
    for ticket, (ours, theirs) in enumerate(zip(with_room, truth, strict=True)):
        if ticket not in large:
            assert same(ours, theirs)
            continue
        assert ours.status is ds.Status.INVALID
        n, m = len(problems[ticket].x), len(problems[ticket].y)  # type: ignore[arg-type]
        for part in ("not enough memory for this problem alone", "no room", f"{n} x {m} points", "free memory"):
            assert part in ours.message


# The compiled CPU backend: its allocator fails.


def large(count: int = 1, n: int = 300) -> list[ds.Problem[Any]]:
    rng = np.random.default_rng(3)
    return [ds.Problem(x=rng.normal(size=(n, 2)), y=rng.normal(size=(n, 2)), eps=0.5) for _ in range(count)]


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Blocks of more than a number of bytes, which a test may set, find no memory."""
    limit, empty, made = [2**62], np.empty, MemoryBlock.__init__

    def short(shape: Any, dtype: Any = float, **keywords: Any) -> Any:
        if dtype is np.uint8 and shape > limit[0]:
            raise MemoryError(f"Unable to allocate {shape} bytes")
        return empty(shape, dtype=dtype, **keywords)

    def init(self: MemoryBlock, size: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(np, "empty", short)
            made(self, size)

    MemoryBlock.release()
    monkeypatch.setattr(MemoryBlock, "__init__", init)
    yield limit
    MemoryBlock.release()


@pytest.mark.parametrize("accelerate", ["none", "momentum"])
@pytest.mark.parametrize("width", [1, 3])
def test_cached_lanes_stream_where_there_is_no_memory_for_one(limited: list[int], width: int, accelerate: str) -> None:
    problems = large(3)
    cached = ds.solve(problems, backend="cpu", accelerate=accelerate)
    limited[0] = 4 * 300 * 300 // 2
    MemoryBlock.release()
    ours = ds.solve(problems, backend="cpu", accelerate=accelerate, width=width)
    chosen = ds.solve(problems, backend=CpuBackend(representation="streaming"), accelerate=accelerate)
    for one, plain, asked in zip(ours, cached, chosen, strict=True):
        assert one.converged
        assert (one.streamed, plain.streamed, asked.streamed) == (True, False, False)
        assert "streaming" in one.arithmetic
        assert "cached" in plain.arithmetic
        assert one.backend == replace(plain.backend, representation="streaming")
        assert max(marginal_errors(one.problem, one.potentials)) <= 1e-3
        assert np.array_equal(one.potentials.f, asked.potentials.f), "it is what streaming gives"
        assert one.depth == asked.depth
        assert ", streamed" in repr(one)


def test_idle_memory_is_freed_before_a_lane_streams(limited: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    problems = large(2)
    truth = ds.solve(problems, backend="cpu")
    assert MemoryBlock.idle_bytes > 0, "retired lanes leave their memory in the pool"
    before = MemoryBlock.__init__

    def short(self: MemoryBlock, size: int) -> None:
        # As if the pool held the last of the memory: nothing is to be had while it holds anything.
        limited[0] = 0 if MemoryBlock.idle_bytes > 0 else 2**62
        before(self, size + 2**22)

    monkeypatch.setattr(MemoryBlock, "__init__", short)
    ours = ds.solve(problems, backend="cpu", width=1)
    assert_same(list(ours), list(truth))
    assert not any(result.streamed for result in ours)
    assert ours.ledger.narrowed


def test_a_dense_cost_cannot_stream(limited: list[int]) -> None:
    rng = np.random.default_rng(0)
    problems = [ds.Problem(cost=rng.random((size, size)), eps=0.1) for size in (300, 9)]
    limited[0] = 4 * 300 * 300 // 2
    refused, solved = ds.solve(problems, backend="cpu", warn=False)
    assert solved.converged
    assert refused.status is ds.Status.INVALID
    assert "300 x 300 points" in refused.message
    assert "in place of a dense cost" in refused.message


def test_a_repack_that_runs_out_leaves_the_cpu_pack_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from drainsinkhorn.backends.cpu import pack as module
    from drainsinkhorn.backends.cpu.lane_table import LANE
    from drainsinkhorn.run.validate import validate

    problems = [validate(problem, 1e-3) for problem in large(3, 40)]
    packs = [CpuBackend().pack(problems[:2]) for _ in range(2)]
    concatenate, left = np.concatenate, iter([None])

    def second(parts: Any, *args: Any) -> Any:
        if parts[-1].shape[1:] == (len(LANE),) and next(left, "none") is None:
            raise MemoryError("no room for the records of lanes")
        return concatenate(parts, *args)

    with monkeypatch.context() as patch:
        patch.setattr(module.np, "concatenate", second)
        with pytest.raises(MemoryError):
            packs[0].repack([1], [problems[2]])
    for pack in packs:
        pack.advance(3, [-np.inf] * 2)
    assert packs[0].verify([0, 1]) == packs[1].verify([0, 1])


# What says so: journal, messages, files.


def streamed_result() -> ds.Result[Any]:
    result = ds.solve(batch(1), backend="reference")[0]
    return replace(result, streamed=True)


def test_messages_and_files_say_that_a_lane_streamed(tmp_path: Path) -> None:
    for flag in (True, False):
        result = replace(streamed_result(), streamed=flag)
        facts, raw = wire.from_result(5, result)
        (outcome,) = wire.to_outcomes([facts], memoryview(raw))
        assert (outcome.streamed, outcome.ticket, outcome.rescued) == (flag, 5, False)
        path = tmp_path / "out.npz"
        write_solution(path, [result], Ledger(), 1e-3)
        with np.load(path) as arrays:
            assert arrays["streamed"].tolist() == [flag]
        assert ("streamed" in as_row(result)["note"]) is flag


def test_a_journal_recalls_that_a_lane_streamed(tmp_path: Path, limited: list[int]) -> None:
    problems, path = large(2), tmp_path / "journal"
    limited[0] = 4 * 300 * 300 // 2
    first = ds.solve(problems, backend="cpu", journal=path)
    limited[0] = 2**62
    again = ds.solve(problems, backend="cpu", journal=path)
    assert_same(list(again), list(first))
    assert [result.streamed for result in again] == [True, True]
    assert [result.backend for result in again] == [result.backend for result in first]


# Memory runs out where no lane can be blamed.


@pytest.mark.parametrize("mode", ["static", "compact"])
@pytest.mark.parametrize("late", [0, 3, 6])
def test_recording_that_runs_out_loses_no_result(
    mode: str, late: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = batch(7)
    truth = ds.solve(problems, backend="reference", mode=mode, width=7)
    enter, entered = Journal.enter, list[int]()

    def full(self: Journal, problem: Any, record: Any, **keywords: Any) -> None:
        if len(entered) == late:
            raise MemoryError("no room for a row")
        entered.append(record.ticket)
        enter(self, problem, record, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "enter", full)
        with pytest.raises(ds.OutOfMemory, match="no room for a row") as caught:
            ds.solve(problems, backend="reference", mode=mode, width=7, journal=tmp_path / "journal")
    results = caught.value.results
    assert len(results) == 7 if mode == "static" else len(results) > late
    assert all(same(result, truth[ticket]) for ticket, result in results.items())
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, ds.DrainError)
    assert caught.value.ledger.slots > 0  # type: ignore[attr-defined]
    # What was recorded is recalled, and the rest is solved; static lanes have fewer to wait for.
    again = ds.solve(problems, backend="reference", mode=mode, width=7, journal=tmp_path / "journal")
    assert again.converged
    assert all(same(result, truth[result.ticket]) for result in again if mode == "compact" or result.ticket in entered)


def test_a_stream_that_runs_out_hands_over_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = batch(5)
    truth = ds.solve(problems, backend="reference", mode="static", width=5)
    finish, seen = Session.finish, list[int]()

    def full(self: Any, outcome: Any) -> Any:
        seen.append(outcome.ticket)
        if len(seen) == 3:
            raise MemoryError
        return finish(self, outcome)

    monkeypatch.setattr(Session, "finish", full)
    monkeypatch.setattr(Session, "reports_each_problem", True)
    stream = ds.stream(problems, backend="reference", mode="static", width=5)
    got = {result.ticket: result for result in (next(stream), next(stream))}
    with pytest.raises(ds.OutOfMemory, match="MemoryError") as caught:
        next(stream)
    assert not set(got) & set(caught.value.results)
    assert_same([*got.values(), *caught.value.results.values()], list(truth))


def test_a_feed_settles_what_was_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    problems, feed = batch(4), ds.Feed()
    answers = [feed.push(problem) for problem in problems]
    feed.close()
    finish, seen = Session.finish, list[int]()

    def full(self: Any, outcome: Any) -> Any:
        seen.append(outcome.ticket)
        if len(seen) == 2:
            raise MemoryError
        return finish(self, outcome)

    monkeypatch.setattr(Session, "finish", full)
    monkeypatch.setattr(Session, "reports_each_problem", True)
    with pytest.raises(ds.OutOfMemory):
        list(ds.stream(feed, backend="reference", mode="static", width=4))
    assert all(answer.result(0).converged for answer in answers)


def test_sorting_that_runs_out_loses_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor of a chain is sorted when its predecessor has ended."""
    problems = [*batch(3), *(replace(problem, chain="c") for problem in batch(2))]
    truth = ds.solve(problems, backend="reference")
    signature, seen = ReferenceBackend.signature, list[Any]()

    def full(self: Any, problem: Any) -> Any:
        seen.append(problem)
        if len(seen) > 5:
            raise MemoryError("no room to sort")
        return signature(self, problem)

    monkeypatch.setattr(ReferenceBackend, "signature", full)
    with pytest.raises(ds.OutOfMemory, match="no room to sort") as caught:
        ds.solve(problems, backend="reference")
    results = caught.value.results
    assert 3 in results
    assert all(same(result, truth[ticket]) for ticket, result in results.items())


def test_a_link_that_starts_cold_for_lack_of_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [replace(problem, chain="c") for problem in batch(3)]
    warm = ds.solve(chain, backend="reference")
    extend = extend_module.extend_instance

    def full(old: Any, potentials: Any, new: Any, backend: Any) -> Any:
        if new.x is chain[1].x:
            raise MemoryError("no room for potentials")
        return extend(old, potentials, new, backend)

    monkeypatch.setattr(extend_module, "extend_instance", full)
    first, second, third = ds.solve(chain, backend="reference")
    assert same(first, warm[0])
    assert second.converged
    (cold,) = ds.solve([batch(3)[1]], backend="reference")
    assert np.array_equal(second.potentials.f, cold.potentials.f), "as if it were the first of its chain"
    assert "did not start from its predecessor in the chain, for lack of memory" in second.message
    assert third.converged
    assert "predecessor" not in first.message + third.message


def test_a_problem_that_cannot_be_checked_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = batch(4)
    truth = ds.solve(problems, backend="reference")
    signature = ReferenceBackend.signature

    def full(self: Any, problem: Any) -> Any:
        if problem.eps == problems[2].eps:
            raise MemoryError("no room to look at it")
        return signature(self, problem)

    monkeypatch.setattr(ReferenceBackend, "signature", full)
    ours = ds.solve(problems, backend="reference", warn=False)
    assert "not enough memory to check this problem (no room to look at it)" in ours[2].message
    assert all(same(ours[t], truth[t]) for t in (0, 1, 3))


def test_stacks_are_checked_one_by_one_without_memory_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 6, 9, 2))
    truth = ds.solve(x, y, eps=0.5, backend="reference")
    isfinite = np.isfinite

    def full(array: Any, *args: Any, **keywords: Any) -> Any:
        if getattr(array, "shape", ()) == x.shape:
            raise MemoryError("no room for all")
        return isfinite(array, *args, **keywords)

    monkeypatch.setattr(batch_module.np, "isfinite", full)
    assert_same(list(ds.solve(x, y, eps=0.5, backend="reference")), list(truth))


def test_what_libraries_say_is_a_memory_error() -> None:
    class OutOfMemoryError(RuntimeError):
        """As torch names it."""

    says = [
        OutOfMemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has ..."),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4 bytes."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        MemoryError("plain"),
    ]
    for error in says:
        assert is_out_of_memory(error)
        with pytest.raises(MemoryError), memory_errors():
            raise error
    for other in (RuntimeError("illegal memory access"), ValueError("out of memory"), None):
        assert not is_out_of_memory(other)
    with pytest.raises(RuntimeError, match="illegal"), memory_errors():
        raise RuntimeError("illegal memory access")
