"""Plots of couplings, of applications, and of the work of a run; they need the extra `plot`."""

from drainsinkhorn.apps.plots import drift as drift
from drainsinkhorn.apps.plots import transitions as transitions
from drainsinkhorn.plans.pictures import displacement as displacement
from drainsinkhorn.plans.pictures import matches as matches
from drainsinkhorn.plans.pictures import plan as plan
from drainsinkhorn.plans.plots import survival as survival
from drainsinkhorn.plans.plots import widths as widths
from drainsinkhorn.plans.style import style as style
