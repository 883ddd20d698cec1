"""Couplings between time points of single cells, from AnnData or arrays."""

from drainsinkhorn.apps.cells import Table as Table
from drainsinkhorn.apps.cells import Timepoints as Timepoints
from drainsinkhorn.apps.cells import couple_timepoints as couple_timepoints
