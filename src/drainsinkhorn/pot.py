"""Entropic transport under POT's names: POT's arguments in, POT's result fields out."""

from drainsinkhorn.apps.pot import OTResult as OTResult
from drainsinkhorn.apps.pot import sinkhorn as sinkhorn
from drainsinkhorn.apps.pot import sinkhorn2 as sinkhorn2
from drainsinkhorn.apps.pot import solve as solve
from drainsinkhorn.apps.pot import solve_batch as solve_batch
from drainsinkhorn.apps.pot import solve_sample as solve_sample
from drainsinkhorn.apps.pot import solve_sample_batch as solve_sample_batch
