"""Attacks on a run while it runs, on fleets of one and two workers: does anything wrong get out unnoticed?

An attack corrupts what a backend reports, its state, the problems, or the processes. ATTACKS states in advance which
guard must stop each attack:

- "door": validation makes the problem INVALID, and it never runs;
- "verify": the screen is wrong, verify decides, and every answer is right;
- "healed": the state is damaged, the iteration repairs it, and every answer is right;
- "rescue": the lane is given up, run again alone by the sound backend, and right;
- "requeued": a worker dies, its problems run again, and every answer is right;
- "identity": a lane is emitted with another lane's state, the executor rejects it, and the worker stops; its problems
  run again, or a last single one comes back QUARANTINED;
- "recheck": verify passed a wrong answer, the recheck from the caller's own arrays withholds it, and the worker stops;
  its problems run again, or a last single one comes back QUARANTINED;
- "quarantine": the worker stops by itself, and the problem comes back QUARANTINED;
- "nobody": the library returns a wrong answer, and only the campaign's own float64 audit of every answer detects it.

An attack counts as caught if the library itself stopped it: no wrong answer was returned, all other lanes are right,
and the attacked lanes end as stated. An attack without effect is not caught, nor is one of guard "nobody".
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np

from drainsinkhorn.backends.wrapped import WrappedBackend, WrappedPack
from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.events import Event, Lost
from drainsinkhorn.core.options import Rechecks
from drainsinkhorn.core.protocol import Backend, Emission, Pack, Progress
from drainsinkhorn.fleet.fleet import Fleet
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Residual, Residuals, Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.parallel import LocalFleet
from drainsinkhorn.testing import marginal_errors

TOL = 1e-3
COUNT, SIZE = 16, 48
DUE = 2
"""The call of advance at whose end most attacks strike: lanes are under way, and none has finished."""


class Attacked(WrappedPack):
    """A pack that passes calls on to a working one and injects the fault that `attack` names."""

    def __init__(self, inner: Pack[Any], attack: str, token: str) -> None:
        super().__init__(inner)
        self.attack, self.token, self.calls, self.looks = attack, token, 0, 0
        self.emitted = self.struck = 0

    def advance(self, cycles: int, stops: Sequence[float], *, lockstep: bool = False) -> Progress:
        """Advance; once it is due, falsify the progress of lane 0, damage its state, or kill this process."""
        self.calls += 1
        if self.attack == "advance that moves nothing" and self.calls == DUE:
            return Progress([0] * self.inner.width, [math.inf] * self.inner.width)
        progress = self.inner.advance(cycles, stops, lockstep=lockstep)
        depths, stale = list(progress.depths), list(progress.stale)
        if self.attack == "worker killed" and self.calls == DUE and _taken(self.token):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.attack in SCREENS and DUE <= self.calls <= DUE + 2:
            stale[0] = SCREENS[self.attack](stale[0])
        if self.attack in ("premature pass", "verify understated") and self.calls == DUE:
            stale[0] = 0.0
        if self.attack in LATE and self.emitted and not self.struck:
            self.struck = self.calls
            stale[0] = 0.0
        if self.attack == "depth inflated" and self.calls == DUE:
            depths[0] = 10**6
        if self.attack in STATES and self.calls == DUE:
            STATES[self.attack](self.inner._lanes[0])  # type: ignore[attr-defined]
        return Progress(depths, stale)

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """Verify, and falsify the residuals of lane 0 if the attack is on verify."""
        residuals = self.inner.verify(lanes, exact=exact).rows()
        if 0 not in lanes:
            return Residuals.from_rows(residuals)
        self.looks += 1
        place = list(lanes).index(0)
        if self.attack in LATE and self.struck == self.calls:
            residuals[place] = Residual(0.0, 0.0, 0.0)
        if self.attack in VERIFIES and self.looks <= VERIFIES[self.attack][0]:
            residuals[place] = VERIFIES[self.attack][1](residuals[place])
        return Residuals.from_rows(residuals)

    def emit(self, lanes: Sequence[int]) -> Emission:
        """Emit, and return the state of lane 1 for lane 0 if the attack is on emit."""
        self.emitted += len(lanes)
        if self.attack == "a neighbour's potentials emitted" and self.inner.width > 1:
            lanes = [1 if lane == 0 else lane for lane in lanes]
        return self.inner.emit(lanes)

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Repack; depending on the attack in the wrong order, with a lane twice, or raise MemoryError."""
        keep = list(keep)
        if self.attack == "lanes swapped at repack":
            keep = [*keep[1:], *keep[:1]]
        if self.attack == "a lane twice at repack":
            keep = [*keep[:-1], *keep[:1]]
        if admit and self.attack == "memory runs out at refill" and self.calls <= DUE + 4:
            raise MemoryError("attacked")
        self.inner.repack(keep, admit)


def _taken(token: str) -> bool:
    """Create the file `token`; return True if this process created it, False if it existed already."""
    try:
        os.close(os.open(token, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _flip(lane: Any) -> None:
    """Flip one bit in the exponent of one potential of a lane."""
    bits = np.ascontiguousarray(lane.f).view(np.uint64)
    bits[3] ^= np.uint64(1 << 54)
    lane.measure()


def _poison(value: float) -> Callable[[Any], None]:
    def strike(lane: Any) -> None:
        lane.f = lane.f.copy()
        lane.f[3] = value
        lane.measure()

    return strike


def _forget(lane: Any) -> None:
    lane.f, lane.g = 0 * lane.f, 0 * lane.g
    lane.measure()


SCREENS: dict[str, Callable[[float], float]] = {
    "NaN in the screen": lambda _: math.nan,
    "inf in the screen": lambda _: math.inf,
    "screen zeroed": lambda _: 0.0,
    "screen negative": lambda _: -1.0,
    "screen a thousand times too low": lambda stale: stale / 1000,
    "screen a thousand times too high": lambda stale: stale * 1000,
}
STATES: dict[str, Callable[[Any], None]] = {
    "NaN in the potentials": _poison(math.nan),
    "inf in the potentials": _poison(math.inf),
    "a bit flipped in a potential": _flip,
    "potentials set back to zero": _forget,
}
VERIFIES: dict[str, tuple[float, Callable[[Residual], Residual]]] = {
    "premature pass": (math.inf, lambda _: Residual(0.0, 0.0, 0.0)),
    "verify understated": (math.inf, lambda r: Residual(r.row / 1e4, r.col / 1e4, r.band)),
    "verify overstated": (3, lambda r: Residual(1.0, 1.0, r.band)),
    "verify says NaN": (1, lambda _: Residual(math.nan, math.nan, math.nan)),
}

LATE = {"a later premature pass": "sampled", "a later premature pass, all rechecked": "all"}
"""Attacks that pass a lane too early after other lanes have left, and the `recheck` mode of each."""

ATTACKS: dict[str, str] = {
    **dict.fromkeys(SCREENS, "verify"),
    "NaN in the potentials": "rescue",
    "inf in the potentials": "rescue",
    "a bit flipped in a potential": "healed",
    "potentials set back to zero": "healed",
    "premature pass": "recheck",
    "verify understated": "recheck",
    "a later premature pass": "nobody",
    "a later premature pass, all rechecked": "recheck",
    "verify overstated": "verify",
    "verify says NaN": "rescue",
    "a neighbour's potentials emitted": "identity",
    "lanes swapped at repack": "identity",
    "a lane twice at repack": "identity",
    "advance that moves nothing": "quarantine",
    "depth inflated": "rescue",
    "memory runs out at refill": "healed",
    "worker killed": "requeued",
    "NaN in the points": "door",
    "inf in the points": "door",
    "NaN in the weights": "door",
    "NaN in the start": "door",
}
"""Every attack, and who must stop it."""
FEW = {"quarantine": 2, "recheck": 2, "identity": 8, "a later premature pass, all rechecked": 4}
"""Number of problems, by guard or attack, where workers stop repeatedly and have to be replaced each time."""
ATTEMPTS = 12
"""Times that an attack is tried until it ends as stated; one that lets a wrong answer out is not tried again."""
SAID = {
    "identity": "but emit returned",
    "recheck": "recomputed from its own arrays",
    "quarantine": "moved no live lane",
}
"""Part of the error message with which each guard stops a worker."""


@dataclass(frozen=True)
class AttackedBackend(WrappedBackend):
    """A backend whose packs inject a fault: see `Attacked`.

    Attributes:
        attack: A name in ATTACKS.
        token: Path of a file that does not exist yet; the first process that creates it is the one that is killed.
    """

    attack: str = ""
    token: str = ""

    def pack(self, instances: Sequence[Instance[Any]]) -> Pack[Any]:
        """See Backend."""
        return Attacked(self.inner.pack(instances), self.attack, self.token)


def problems(seed: int = 0) -> list[Problem[Any]]:
    """Clouds of unequal depths, none of which finishes before the attack."""
    made = list[Problem[Any]]()
    for k in range(COUNT):
        rng = np.random.default_rng([seed, 61, k])
        x, y = rng.normal(size=(SIZE, 2)), 0.5 + (0.6 + 0.1 * (k % 8)) * rng.normal(size=(SIZE, 2))
        made.append(Problem(x=x, y=y, eps=0.1 / (1 + k % 8 / 3)))
    return made


def _spoiled(attack: str, given: list[Problem[Any]]) -> tuple[list[Problem[Any]], set[int]]:
    """Return the problems, one made invalid if the attack is on validation, and the indices of those changed."""
    bad = 3
    given = list(given)
    n = SIZE
    if attack in ("NaN in the points", "inf in the points"):
        x = np.array(given[bad].x)
        x[5] = math.nan if attack.startswith("NaN") else math.inf
        given[bad] = replace(given[bad], x=x)
    elif attack == "NaN in the weights":
        given[bad] = replace(given[bad], a=np.full(n, math.nan))
    elif attack == "NaN in the start":
        given[bad] = replace(given[bad], init=Potentials(np.full(n, math.nan), np.zeros(n)))
    else:
        return given, set()
    return given, {bad}


class Ended(NamedTuple):
    """How an attack went.

    Attributes:
        as_foretold: True if it ended as ATTACKS says.
        caught: True if, in addition, the library itself stopped it.
        how: Description of what happened.
        let_out: Wrong answers that the library reported as CONVERGED.
    """

    as_foretold: bool
    caught: bool
    how: str
    let_out: int


def strike(fleet: Fleet, attack: str, backend: Backend[Any]) -> Ended:
    """Run an attack on a fleet, and judge whether it ended as ATTACKS says."""
    given, hit = _spoiled(attack, problems()[: FEW.get(attack, FEW.get(ATTACKS[attack], COUNT))])
    lost = list[Lost]()

    def watch(event: Event) -> None:
        if isinstance(event, Lost):
            lost.append(event)

    with tempfile.TemporaryDirectory() as folder:
        attacked = AttackedBackend(backend, attack, f"{folder}/token")
        stream = fleet.stream(
            iter(given), tol=TOL, backend=attacked, observe=watch, accelerate="none", init="zero",
            audit=Audit(every=2), width=4, max_depth=5000, recheck=cast("Rechecks", LATE.get(attack, "sampled")),
            warn=False,
        )  # fmt: skip
        results = {result.ticket: result for result in stream}
    if sorted(results) != list(range(len(given))):
        return Ended(False, False, f"{len(results)} answers for {len(given)} problems", 0)
    return _judged(ATTACKS[attack], results, given, hit, lost, stream.ledger.rejected)


def _judged(
    expected: str,
    results: dict[int, Result[Any]],
    given: list[Problem[Any]],
    hit: set[int],
    lost: list[Lost],
    rejected: int,
) -> Ended:
    """Judge whether an attack ended as the guard `expected` demands, and describe what happened."""
    said = {k for k, result in results.items() if result.status is Status.CONVERGED}
    wrong = {k for k in said if not max(marginal_errors(given[k], results[k].potentials)) <= TOL}
    refused = {k for k, result in results.items() if result.status is Status.INVALID}
    quarantined = {k for k, result in results.items() if result.status is Status.QUARANTINED}
    stopped = [loss for loss in lost if SAID.get(expected, "") in loss.reason]
    rescued = {k for k, result in results.items() if result.rescued}
    seen = {
        "door": (refused, f"{len(refused)} refused as INVALID"),
        "nobody": (wrong, f"{len(wrong)} wrong let out, seen by the external float64 audit alone"),
        "rescue": (rescued, f"{len(rescued)} run again alone and right"),
        "identity": (stopped, f"{len(stopped)} stray states refused, {len(quarantined)} returned as not solved"),
        "recheck": (stopped, f"{len(stopped)} wrong withheld, {len(quarantined)} returned as not solved"),
        "quarantine": (quarantined, f"{len(quarantined)} returned as not solved"),
        "requeued": (lost, f"{len(lost)} workers lost, their problems run again"),
        "verify": (True, f"{rejected} rejected by verify, all answers right"),
        "healed": (True, "all answers right"),
    }[expected]
    everyone = set(results)
    withheld = len(stopped) == len(lost) > 0 and not wrong and said | quarantined == everyone
    sound = {
        "door": refused == hit and said == everyone - hit and not wrong,
        "nobody": 0 < len(wrong) < len(everyone) and said == everyone,
        "identity": withheld,
        "recheck": withheld,
        "quarantine": bool(quarantined) and bool(stopped) and not wrong and said | quarantined == everyone,
    }.get(expected, said == everyone and not wrong and bool(seen[0]))
    return Ended(bool(sound), bool(sound) and expected != "nobody", seen[1], len(wrong))


def attacks(workers: int, sound: Backend[Any], lanes: Backend[Any]) -> Iterator[tuple[str, Ended]]:
    """Run every attack on one fleet; yield the name of each attack and how it ended.

    Args:
        workers: Number of workers of the fleet.
        sound: The backend for attacks on what packs report or emit, on problems and on processes.
        lanes: The backend for attacks on the state of a lane. Its packs must be lists of lane objects, as those of
            `reference` are.
    """
    with _silence(), LocalFleet(workers, strikes=1) as fleet:
        for attack in ATTACKS:
            backend = lanes if attack in STATES else sound
            ended = strike(fleet, attack, backend)
            # Which lanes share a pack depends on the speed of the workers, so an attack may have no effect.
            for _ in range(ATTEMPTS - 1):
                if ended.as_foretold or ended.let_out:
                    break
                ended = strike(fleet, attack, backend)
            yield attack, ended


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discard stderr: error messages of workers that fail on purpose would look like a failure of the campaign."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
