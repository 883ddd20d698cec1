"""Batched entropic optimal transport: many problems as lanes of one kernel, each to a verified accuracy."""

from drainsinkhorn.core.audit import Audit as Audit
from drainsinkhorn.core.audit import Geometric as Geometric
from drainsinkhorn.core.history import ResidualHistory as ResidualHistory
from drainsinkhorn.core.ledger import Ledger as Ledger
from drainsinkhorn.core.options import MODES as MODES
from drainsinkhorn.core.options import Mode as Mode
from drainsinkhorn.core.options import Options as Options
from drainsinkhorn.core.options import Profile as Profile
from drainsinkhorn.divergences import Divergences as Divergences
from drainsinkhorn.divergences import divergence as divergence
from drainsinkhorn.model.cost import Cost as Cost
from drainsinkhorn.model.cost import Distances as Distances
from drainsinkhorn.model.couplings import Certificate as Certificate
from drainsinkhorn.model.couplings import TransportCost as TransportCost
from drainsinkhorn.model.eps import FallingEps as FallingEps
from drainsinkhorn.model.eps import RelativeEps as RelativeEps
from drainsinkhorn.model.eps import SharpnessEps as SharpnessEps
from drainsinkhorn.model.eps import falling as falling
from drainsinkhorn.model.eps import relative as relative
from drainsinkhorn.model.eps import sharpness as sharpness
from drainsinkhorn.model.errors import BackendUnavailable as BackendUnavailable
from drainsinkhorn.model.errors import ContractError as ContractError
from drainsinkhorn.model.errors import ConvergenceWarning as ConvergenceWarning
from drainsinkhorn.model.errors import DeadlineError as DeadlineError
from drainsinkhorn.model.errors import DrainError as DrainError
from drainsinkhorn.model.errors import FeedClosed as FeedClosed
from drainsinkhorn.model.errors import FeedFull as FeedFull
from drainsinkhorn.model.errors import GradientWarning as GradientWarning
from drainsinkhorn.model.errors import Interrupted as Interrupted
from drainsinkhorn.model.errors import KernelCacheWarning as KernelCacheWarning
from drainsinkhorn.model.errors import NotConverged as NotConverged
from drainsinkhorn.model.errors import ObserverWarning as ObserverWarning
from drainsinkhorn.model.errors import OptionsError as OptionsError
from drainsinkhorn.model.errors import OutOfMemory as OutOfMemory
from drainsinkhorn.model.errors import ProblemError as ProblemError
from drainsinkhorn.model.errors import SubstitutionWarning as SubstitutionWarning
from drainsinkhorn.model.instance import Instance as Instance
from drainsinkhorn.model.problem import Potentials as Potentials
from drainsinkhorn.model.problem import Problem as Problem
from drainsinkhorn.model.result import Residual as Residual
from drainsinkhorn.model.result import Result as Result
from drainsinkhorn.model.status import Status as Status
from drainsinkhorn.numerics.costs import Formula as Formula
from drainsinkhorn.numerics.costs import PointCost as PointCost
from drainsinkhorn.plans.consumers import apply as apply
from drainsinkhorn.plans.consumers import barycentric_map as barycentric_map
from drainsinkhorn.plans.consumers import map_points as map_points
from drainsinkhorn.plans.consumers import marginal as marginal
from drainsinkhorn.plans.consumers import normalised_entropy as normalised_entropy
from drainsinkhorn.plans.consumers import partners as partners
from drainsinkhorn.plans.consumers import plan as plan
from drainsinkhorn.plans.consumers import sample as sample
from drainsinkhorn.plans.consumers import top_match as top_match
from drainsinkhorn.plans.consumers import transport_cost as transport_cost
from drainsinkhorn.plans.sparse import SparsePlan as SparsePlan
from drainsinkhorn.plans.sparse import sparse_plan as sparse_plan
from drainsinkhorn.run.batches import concatenate as concatenate
from drainsinkhorn.run.client import Client as Client
from drainsinkhorn.run.extend import extend as extend
from drainsinkhorn.run.feed import Feed as Feed
from drainsinkhorn.run.frames import to_frame as to_frame
from drainsinkhorn.run.solution import Solution as Solution
from drainsinkhorn.run.solve import solve as solve
from drainsinkhorn.run.stack import problems as problems
from drainsinkhorn.run.stream import stream as stream

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import a module of another library's names when it is first used: `drainsinkhorn.pot.solve(...)`."""
    if name not in ("geomloss", "pot", "sklearn"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module(f"{__name__}.{name}")
