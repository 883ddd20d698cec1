"""POT's names for entropic transport, solved by this library."""

from drainsinkhorn.apps.pot.histograms import sinkhorn as sinkhorn
from drainsinkhorn.apps.pot.histograms import sinkhorn2 as sinkhorn2
from drainsinkhorn.apps.pot.result import OTResult as OTResult
from drainsinkhorn.apps.pot.solvers import solve as solve
from drainsinkhorn.apps.pot.solvers import solve_batch as solve_batch
from drainsinkhorn.apps.pot.solvers import solve_sample as solve_sample
from drainsinkhorn.apps.pot.solvers import solve_sample_batch as solve_sample_batch
