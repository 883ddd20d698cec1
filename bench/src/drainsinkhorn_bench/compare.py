"""Two commits side by side: clean worktrees, a process for each, measured in turns, with the noise floor stated.

The base runs in two processes. Their paired ratio differs from 1 only by noise. A difference between base and head
counts only if it is larger than that noise.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from drainsinkhorn.model.errors import DrainError, OptionsError
from drainsinkhorn_bench import probe
from drainsinkhorn_bench.runner import orders
from drainsinkhorn_bench.statistics import Pair, Summary, summary

SIDES = ("base", "again", "head")


class CompareError(DrainError, RuntimeError):
    """Two commits that cannot be compared; the text says why."""


class Compared(NamedTuple):
    """What a case found.

    Attributes:
        case: Its name.
        head: Seconds of the base over those of the head; above 1 the head is faster. None where the case is void.
        floor: Seconds of the base over those of the base again.
        noise: How far from 1 the floor's interval reaches, as a factor.
        verdict: "faster", "slower", "no difference beyond the noise", or "void: " and why.
        note: What else differs.
    """

    case: str
    head: Summary | None
    floor: Summary | None
    noise: float
    verdict: str
    note: str


def commit_of(repository: Path, revision: str) -> str:
    """The full name of a commit."""
    return _git(repository, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")


def repository_of(folder: Path) -> Path:
    """Return the root of the git repository around a folder; CompareError if it is not one of this library."""
    try:
        root = Path(_git(folder, "rev-parse", "--show-toplevel"))
    except CompareError as error:
        raise CompareError(f"{folder} is in no git repository, so there are no commits to compare") from error
    if not (root / "src" / "drainsinkhorn").is_dir():
        raise CompareError(f"{root} is no repository of drainsinkhorn: src/drainsinkhorn is not there")
    return root


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompareError(f"git cannot be run: {error}") from error
    if done.returncode:
        raise CompareError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def worktree(repository: Path, commit: str, parent: Path) -> Iterator[Path]:
    """A clean checkout of a commit, removed afterwards."""
    folder = parent / commit[:12]
    _git(repository, "worktree", "add", "--detach", "--force", str(folder), commit)
    try:
        yield folder
    finally:
        _git(repository, "worktree", "remove", "--force", str(folder))


class Process:
    """A process that runs `probe` with the library of one commit."""

    def __init__(self, folder: Path, device: str) -> None:
        # -P keeps the folder of the script off the path: only the worktree's library is found.
        words = [sys.executable, "-P", probe.__file__, device]
        self._process = subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        found = Path(self._answer()["file"])
        if not found.is_relative_to(folder.resolve()) and not found.is_relative_to(folder):
            self.close()
            raise CompareError(f"{folder} should be measured, and {found} was imported")

    def ask(self, *request: Any) -> dict[str, Any]:
        """Ask and wait."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise CompareError("a side ended before it was asked; does that commit run on this machine?") from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            raise CompareError("a side ended without an answer; does that commit run on this machine?")
        return json.loads(text)

    def close(self) -> None:
        """Kill the process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def compare(
    repository: Path,
    base: str,
    head: str = "HEAD",
    *,
    cases: Sequence[str] = (),
    rounds: int = 10,
    device: str = "cpu",
    tell: Callable[[str], None] = lambda _: None,
) -> list[Compared]:
    """Measure two commits.

    Args:
        repository: The git repository that has both commits.
        base: The commit that `head` is compared with.
        head: The commit that is judged against `base`.
        cases: Names of probe.CASES; empty: all.
        rounds: Paired measurements of every case.
        device: "cpu" or "cuda".
        tell: Called with a description of each step when it begins.
    """
    if unknown := [name for name in cases if name not in probe.CASES]:
        raise OptionsError(f"there is no case {unknown[0]!r}; there are {', '.join(probe.CASES)}")
    if rounds < 2:
        raise OptionsError(f"rounds must be at least 2, got {rounds}; an interval needs something to draw from")
    commits = {"base": commit_of(repository, base), "head": commit_of(repository, head)}
    with ExitStack() as stack:
        parent = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="drain-compare-")))
        folders = {
            commit: stack.enter_context(worktree(repository, commit, parent)) for commit in set(commits.values())
        }
        tell("starting both sides")
        sides = {
            side: stack.enter_context(Process(folders[commits["head" if side == "head" else "base"]], device))
            for side in SIDES
        }
        return [_case(name, sides, rounds, tell) for name in cases or probe.CASES]


def _case(name: str, sides: dict[str, Process], rounds: int, tell: Callable[[str], None]) -> Compared:
    tell(f"{name}: gate")
    gates = {side: process.ask("gate", name) for side, process in sides.items()}
    for side, found in gates.items():
        if "error" in found:
            return Compared(name, None, None, math.nan, f"void: {side} failed: {found['error']}", "")
        if not found["residual"] <= probe.TOL:
            return Compared(name, None, None, math.nan, f"void: {side} has a residual of {found['residual']:.3g}", "")
    loops = max(found["loops"] for found in gates.values())
    laps: dict[str, list[float]] = {side: [] for side in SIDES}
    for lap, order in enumerate(orders(len(SIDES), rounds)):
        tell(f"{name}: round {lap + 1} of {rounds}")
        for which in order:
            found = sides[SIDES[which]].ask("time", name, loops)
            if "error" in found:
                return Compared(name, None, None, math.nan, f"void: {SIDES[which]} failed: {found['error']}", "")
            laps[SIDES[which]].append(found["seconds"])
    differ = "" if gates["base"]["depths"] == gates["head"]["depths"] else "depths differ"
    return judge(name, laps, differ)


def judge(name: str, laps: dict[str, list[float]], note: str = "") -> Compared:
    """Summarise the paired time ratios of a case and compare them with the noise: faster, slower or no difference."""
    head, floor = (
        summary(
            name,
            [Pair(name, "here", lap, b / s) for lap, (b, s) in enumerate(zip(laps["base"], laps[side], strict=True))],
        )
        for side in ("head", "again")
    )
    assert head.interval is not None
    assert floor.interval is not None
    noise = max(floor.interval.high, 1 / floor.interval.low, 1.0)
    verdict = "no difference beyond the noise"
    if head.interval.low > noise:
        verdict = "faster"
    elif head.interval.high < 1 / noise:
        verdict = "slower"
    return Compared(name, head, floor, noise, verdict, note)
