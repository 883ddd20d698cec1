"""Findings of a soak, and the tally of what it solved."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SoakFinding:
    """A violation that a soak has detected, of one of the kinds that the module `soak` lists.

    Attributes:
        kind: See `soak`.
        backend: Name of the backend.
        seed: Seed of the generator.
        index: Number of the problem.
        batch: Number of the batch in which it was solved.
        alone: True if it also happens when only the problems of its chain are solved.
        detail: What was claimed and what is true.
        tol: The tol that replaced the problem's own for an "edge" finding; None: its own.
        frugal: Whether lanes had the representation that needs least memory (`Backend.frugal`).
        costs: Names of the only costs that were drawn; empty: those of the scope.
        soft: Share of soft problems that was drawn; None: that of the scope.
    """

    kind: str
    backend: str
    seed: int
    index: int
    batch: int
    alone: bool
    detail: str
    tol: float | None = None
    frugal: bool = False
    costs: tuple[str, ...] = ()
    soft: float | None = None

    def __str__(self) -> str:
        only = f"--only {self.index}" if self.alone else f"--batch {self.batch}"
        only += "" if self.tol is None else f" --tol {self.tol!r}"
        only += " --frugal" * self.frugal + "".join(f" --cost {name}" for name in self.costs)
        only += "" if self.soft is None else f" --soft {self.soft:g}"
        again = f"python -m drainsinkhorn.testing.soak --backend {self.backend} --seed {self.seed} {only}"
        return f"{self.kind}: problem {self.index}: {self.detail}\n    {again}"


@dataclass
class Tally:
    """Counts and findings of a soak, a run over many hostile problems.

    Attributes:
        backend: Name of the backend.
        seed: Seed of the generator.
        problems: Problems that were solved.
        judged: CONVERGED results that the auditor judged.
        statuses: Results by status.
        arithmetic: Judgements by the arithmetic that settled them.
        refusals: INVALID results by the first words of their messages.
        compared: Problems whose bits were compared between modes.
        understated: Results whose residual plus band is below the true residual, whatever tol is.
        findings: All findings.
        seconds: Seconds in `solve` and in all.
    """

    backend: str
    seed: int
    problems: int = 0
    judged: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    arithmetic: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    understated: int = 0
    findings: list[SoakFinding] = field(default_factory=list)
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def count(self, kind: str) -> int:
        """Findings of a kind."""
        return sum(finding.kind == kind for finding in self.findings)

    def __str__(self) -> str:
        return (
            f"{self.backend}, seed {self.seed}: {self.problems} problems, {self.statuses['CONVERGED']} converged, "
            f"{self.count('false')} false, {dict(Counter(f.kind for f in self.findings))} in all; "
            f"statuses {dict(self.statuses)}; judged in "
            f"{dict(self.arithmetic)}; {self.understated} understated; {self.compared} compared between modes; "
            f"{self.seconds[0]:.0f} s in solve, {self.seconds[1]:.0f} s in all"
        )
