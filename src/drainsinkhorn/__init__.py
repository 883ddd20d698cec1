"""Batched entropic optimal transport: many problems as lanes of one kernel, each to a verified accuracy."""

from drainsinkhorn.api import Interrupted as Interrupted
from drainsinkhorn.api import solve as solve
from drainsinkhorn.api import stream as stream
from drainsinkhorn.backends.costs import Formula as Formula
from drainsinkhorn.backends.starts import extend as extend
from drainsinkhorn.batch import problems as problems
from drainsinkhorn.client import Client as Client
from drainsinkhorn.consumers import apply as apply
from drainsinkhorn.consumers import barycentric_map as barycentric_map
from drainsinkhorn.consumers import partners as partners
from drainsinkhorn.consumers import plan as plan
from drainsinkhorn.consumers import sample as sample
from drainsinkhorn.consumers import top_match as top_match
from drainsinkhorn.consumers import transport_cost as transport_cost
from drainsinkhorn.core.audit import Audit as Audit
from drainsinkhorn.core.audit import Geometric as Geometric
from drainsinkhorn.core.errors import BackendUnavailable as BackendUnavailable
from drainsinkhorn.core.errors import ContractError as ContractError
from drainsinkhorn.core.errors import DeadlineError as DeadlineError
from drainsinkhorn.core.errors import DrainError as DrainError
from drainsinkhorn.core.errors import FeedClosed as FeedClosed
from drainsinkhorn.core.errors import FeedFull as FeedFull
from drainsinkhorn.core.errors import KernelCacheWarning as KernelCacheWarning
from drainsinkhorn.core.errors import NotConverged as NotConverged
from drainsinkhorn.core.errors import OptionsError as OptionsError
from drainsinkhorn.core.errors import OutOfMemory as OutOfMemory
from drainsinkhorn.core.errors import ProblemError as ProblemError
from drainsinkhorn.core.feed import Feed as Feed
from drainsinkhorn.core.ledger import Ledger as Ledger
from drainsinkhorn.core.options import MODES as MODES
from drainsinkhorn.core.options import Mode as Mode
from drainsinkhorn.core.options import Options as Options
from drainsinkhorn.core.options import Profile as Profile
from drainsinkhorn.core.problem import Cost as Cost
from drainsinkhorn.core.problem import Potentials as Potentials
from drainsinkhorn.core.problem import Problem as Problem
from drainsinkhorn.core.result import Residual as Residual
from drainsinkhorn.core.result import Result as Result
from drainsinkhorn.core.result import Status as Status
from drainsinkhorn.core.result import TransportCost as TransportCost
from drainsinkhorn.divergences import Divergences as Divergences
from drainsinkhorn.divergences import divergence as divergence
from drainsinkhorn.solution import Solution as Solution

__version__ = "0.1.0"
