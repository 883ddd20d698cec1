"""Options and modes. Modes are rows of a table, not branches of code."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, cast

from drainsinkhorn.core.audit import EVERY, Audit, Geometric, is_count
from drainsinkhorn.core.protocol import Hints
from drainsinkhorn.model.errors import OptionsError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.keywords import explain_keyword

Certify = Literal["auto", "always"]
Rechecks = Literal["sampled", "all", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How finished lanes are treated.

    Attributes:
        name: Its name.
        together: No lane leaves until every live lane is decided at one audit.
        min_shrink: Physical lanes that a repack must remove to be worth it; inf: never compact.
        freeze: Retired lanes that stay in the kernel are frozen.
        refill: Vacancies that trigger a refill; None: drain the window first.
        width: Fixed width; None: the width of the options.
    """

    name: str
    together: bool = False
    min_shrink: float = 1
    freeze: bool = True
    refill: int | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.min_shrink), numbers.Real) or not self.min_shrink >= 1:
            raise OptionsError(f"min_shrink counts lanes and must be at least 1, got {self.min_shrink}")
        if self.refill is not None and (not is_count(self.refill) or self.together):
            raise OptionsError(
                f"refill must be at least 1 vacancy and cannot go with together, got refill={self.refill}, "
                f"together={self.together}"
            )
        if self.width is not None and not is_count(self.width):
            raise OptionsError(f"width must be an integer of at least 1, got {self.width!r}")

    @property
    def lockstep(self) -> bool:
        """True where every lane of the kernel runs in every cycle, finished or not (static, mask)."""
        return self.together or (self.freeze and self.min_shrink == math.inf)

    def holds(self, audit: Audit) -> bool:
        """Whether lanes are held at the first state whose screen passes."""
        return audit.first_passage and not self.together

    def spacing(self, audit: Audit, hints: Hints, *, polled: bool = False) -> int | Geometric:
        """Return the cycles between audits: those of the audit or, if it names none, what the backend recommends.

        Args:
            audit: The audit.
            hints: The hints of the backend.
            polled: Whether a caller waits for each lane, so that lanes are audited often even if they are held.
        """
        if audit.every is not None:
            return audit.every
        if self.refill is not None:
            return min(hints.refilled, hints.draining) if polled else hints.refilled
        return hints.held if self.holds(audit) and not polled else hints.draining


MODES: dict[str, Mode] = {
    mode.name: mode
    for mode in (
        Mode(name="width-one", width=1),
        Mode(name="static", together=True, min_shrink=math.inf, freeze=False),
        Mode(name="mask", min_shrink=math.inf),
        Mode(name="compact"),
        Mode(name="stream", refill=1),
    )
}


FEW_LANES = 16
"""Lanes that a pack may have whatever their sizes."""
ORDERS = ("given", "grouped", "mixed")
"""Orders of work by name."""
RECHECKS = ("sampled", "all", "none")
"""Which converged results are recomputed from the caller's arrays before they are released."""
STARTS = ("auto", "gaussian", "zero")
"""Starts by name; "auto" is gaussian for sqeuclidean where that moves the potentials enough, and zero elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Depths and costs known before a run, for mode="auto". A profile may change the time of a run, never a result.

    Attributes:
        depths: Depths of problems like these, from an earlier run (`ledger.depths.values()`).
        min_shrink: Lanes a repack must remove to pay for itself (`theory.WidthCost.break_even`).
    """

    depths: Sequence[int] = ()
    min_shrink: float = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "depths", tuple(self.depths))
        if not all(is_count(depth) for depth in self.depths):
            raise OptionsError(f"a profile's depths count cycles and are at least 1, got {self.depths}")
        Mode(name="compact", min_shrink=self.min_shrink)

    def ends_together(self, audit: Audit) -> bool:
        """Whether lanes of these depths, started together, leave at one audit, so that compaction removes nothing."""
        if not self.depths:
            return False
        shallow, deep = min(self.depths), max(self.depths)
        every = audit.every or EVERY
        return deep - shallow < every if isinstance(every, int) else deep <= shallow * every.ratio


@dataclass(frozen=True, slots=True)
class Plan:
    """How the executor runs problems: the options of a run with every choice made.

    Attributes:
        mode: How finished lanes are treated.
        width: Largest number of lanes of a pack.
        audit: When and how lanes are checked.
        max_depth: The depth limit of problems without their own, in cycles.
        exact: True if every verify is a certificate.
        reason: Why the mode was chosen.
        expired: Tickets whose deadline has come; their lanes leave at the next audit.
        pairs: Largest number of pairs of points of all lanes of a pack with more than FEW_LANES lanes.
    """

    mode: Mode
    width: int
    audit: Audit
    max_depth: int
    exact: bool
    reason: str
    expired: Container[int] = ()
    pairs: float = math.inf

    @property
    def holds(self) -> bool:
        """Whether lanes are held at the first state whose screen passes."""
        return self.mode.holds(self.audit)

    def stop(self, instance: Instance[Any]) -> float:
        """Return the largest residual at which an instance passes."""
        return self.audit.margin * instance.tol


class Settings(TypedDict, total=False):
    """The fields of Options except tol and init, for functions that take them as keywords."""

    max_depth: int
    width: int | None
    mode: str | Mode
    audit: Audit
    certify: Certify
    accelerate: str
    rescue: bool
    lookahead: int
    strict: bool
    profile: Profile | None
    order: str
    recheck: Rechecks
    warn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to run a solve.

    Attributes:
        tol: Bound on the larger L1 marginal residual, for problems that bring none of their own.
        max_depth: Largest number of cycles, after which a problem is given up, for problems that bring none of their
            own; a rescue may run as many again.
        width: Lanes of a pack; None: what the backend recommends for problems of this size.
        mode: "auto", a name in MODES, or a Mode.
        audit: When and how lanes are checked.
        certify: "always" computes every residual in float64 from the caller's own arrays, with a rigorous rounding
            bound; docs/benchmarks/rounding.md has its cost. "auto" verifies with a calibrated estimate of rounding, and
            certifies a lane only if that estimate alone would decide.
        accelerate: "auto" takes what the backend offers; "none" is plain Sinkhorn; a name it lacks raises.
        init: Where problems start that bring no start of their own: "auto", "gaussian" or "zero".
        rescue: Run unconverged problems once more in float64, from their last finite potentials, before reporting them.
        lookahead: Problems that `stream` may read ahead to group them by signature.
        strict: Raise on the first INVALID problem instead of reporting it.
        profile: Depths and costs that are known of the problems, for mode "auto"; None: nothing is known.
        order: "given", or by predicted depth among what may be read ahead: "grouped" runs deep problems first, with
            others of their depth; "mixed" gives every window some of each. It changes no result.
        recheck: Which CONVERGED results are recomputed from your own arrays before they are returned: "sampled" (some
            rows and columns of the first result and of some later ones, in about 1 % of the time), "all" (all rows and
            columns of every result, which may take longer than the solve) or "none". A refuted result raises
            ContractError.
        warn: Issue one ConvergenceWarning if the run ends with unconverged problems, and one whenever a plan is taken
            from such a problem.
    """

    tol: float = 1e-3
    max_depth: int = 10_000
    width: int | None = None
    mode: str | Mode = "auto"
    audit: Audit = field(default_factory=Audit)
    certify: Certify = "auto"
    accelerate: str = "auto"
    init: str = "auto"
    rescue: bool = True
    lookahead: int = 1024
    strict: bool = False
    profile: Profile | None = None
    order: str = "given"
    recheck: Rechecks = "sampled"
    warn: bool = True

    def __post_init__(self) -> None:
        if not is_positive(self.tol):
            raise OptionsError(f"tol must be a positive finite number, got {self.tol!r}; 1e-3 is the default")
        for name in ("max_depth", "width", "lookahead"):
            value = getattr(self, name)
            if not is_count(value) and not (name == "width" and value is None):
                raise OptionsError(f"{name} must be an integer of at least 1, got {value!r}")
        if not isinstance(self.mode, Mode) and str(self.mode) not in ("auto", *MODES):
            raise OptionsError(f"mode must be a Mode or one of {['auto', *MODES]}, got {self.mode!r}")
        if not isinstance(cast(object, self.audit), Audit):
            raise OptionsError(f"audit must be an Audit, got {self.audit!r}; Audit(every=8) is the default")
        if self.certify not in ("auto", "always"):
            raise OptionsError(f'certify must be "auto" or "always", got {self.certify!r}')
        if self.init not in STARTS:
            raise OptionsError(f"init must be one of {list(STARTS)} for all problems, got {self.init!r}")
        if self.order not in ORDERS:
            raise OptionsError(f"order must be one of {list(ORDERS)}, got {self.order!r}")
        if self.recheck not in RECHECKS:
            raise OptionsError(f"recheck must be one of {list(RECHECKS)}, got {self.recheck!r}")
        if not isinstance(cast(object, self.profile), Profile | None):
            raise OptionsError(f"profile must be a Profile or None, got {self.profile!r}; Profile(depths=...) is one")
        self.plan(None)

    def plan(self, count: int | None, recommended_width: int = 16) -> Plan:
        """Return mode, width and audits for `count` problems, and the reason.

        Args:
            count: Number of problems; None: unknown, as in a stream.
            recommended_width: Width that the backend recommends (`Hints.width`), used if the options name none.
        """
        width = self.width or recommended_width
        mode, reason = self._pick(count, width)
        if mode.refill is not None and isinstance(self.audit.every, Geometric):
            raise OptionsError(
                f"mode {mode.name!r} refills lanes, and a geometric audit would check them ever more rarely; "
                'use Audit(every=k), or mode="compact"'
            )
        return Plan(mode, mode.width or width, self.audit, self.max_depth, self.certify == "always", reason)

    def _pick(self, count: int | None, width: int) -> tuple[Mode, str]:
        if isinstance(self.mode, Mode):
            return self.mode, "given"
        if self.mode != "auto":
            return MODES[self.mode], "asked for"
        if count == 1:
            return MODES["width-one"], "there is one problem"
        if isinstance(self.audit.every, Geometric):
            return self._compact("a geometric audit does not go with refill")
        if count is not None and count <= width:
            return self._compact(f"{count} problems fit into one window of width {width}")
        many = "problems keep coming" if count is None else f"{count} problems exceed the width {width}"
        return MODES["stream"], f"{many}: lanes are refilled as they drain"

    def _compact(self, why: str) -> tuple[Mode, str]:
        """Return the mode compact, with the least shrink that pays according to the profile, and the reason."""
        compact, profile = MODES["compact"], self.profile
        if profile is None:
            return compact, why
        if profile.ends_together(self.audit):
            equal = f"depths from {min(profile.depths)} to {max(profile.depths)} end together, so nothing is compacted"
            # Not frozen, since frozen lanes would run in lockstep: finished lanes stay in the kernel until all end.
            return replace(compact, min_shrink=math.inf, freeze=False), f"{why}; {equal}"
        return replace(
            compact, min_shrink=profile.min_shrink
        ), f"{why}; a repack pays from {profile.min_shrink:g} lanes"

    def with_fields(self, tol: Any, keywords: Mapping[str, Any]) -> Options:
        """Return these options with those fields changed that are among the keywords of a call of `solve`."""
        fields = {name: value for name, value in keywords.items() if name in Settings.__annotations__}
        return self.with_settings(tol, cast("Settings", fields))

    def with_settings(self, tol: Any, settings: Settings, init: str = "auto") -> Options:
        """Return these options with some fields changed; unknown names raise OptionsError.

        Args:
            tol: A number; None: unchanged.
            settings: Other fields by name.
            init: Name of a start; "auto": unchanged.
        """
        if not settings.keys() <= Settings.__annotations__.keys():
            name = min(settings.keys() - Settings.__annotations__.keys())
            raise OptionsError(
                f"unknown option {name!r}; {explain_keyword(name, (*PASSED, *Settings.__annotations__))}"
            )
        if getattr(tol, "shape", None) == ():
            tol = tol.item()
        changes: dict[str, Any] = {**settings}
        if tol is not None:
            changes["tol"] = tol
        if init != "auto":
            changes["init"] = init
        return replace(self, **changes) if changes else self


PASSED = ("tol", "init", "backend", "options", "observe", "journal", "progress")
"""Keywords of `solve` that are no fields of Options, or are passed apart from the others."""


def check_settings(settings: Collection[str], owner: Callable[..., Any]) -> None:
    """Raise OptionsError for a keyword that `solve` does not take; the text says what to write instead.

    Args:
        settings: Names of the keywords that a function passes on to `solve`.
        owner: The function, whose own arguments may be meant.
    """
    for name in settings:
        if name not in Settings.__annotations__ and name not in PASSED:
            own = [parameter for parameter in inspect.signature(owner).parameters if parameter != "settings"]
            raise OptionsError(
                f"unknown option {name!r}; {explain_keyword(name, (*own, *PASSED, *Settings.__annotations__))}"
            )


def is_positive(value: Any) -> bool:
    """True for a positive finite real number (not a bool)."""
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and 0 < float(value) < math.inf
