"""Depth, work and time: what a run spent, what another would spend, and why problems are as deep as they are."""

from drainsinkhorn.core.ledger import survival as survival
from drainsinkhorn.theory.cost import Forecast as Forecast
from drainsinkhorn.theory.cost import Price as Price
from drainsinkhorn.theory.cost import WidthCost as WidthCost
from drainsinkhorn.theory.modal import Modal as Modal
from drainsinkhorn.theory.modal import Transfer as Transfer
from drainsinkhorn.theory.modal import modal_response as modal_response
from drainsinkhorn.theory.profile import profile_width_cost as profile_width_cost
from drainsinkhorn.theory.work import Estimate as Estimate
from drainsinkhorn.theory.work import Opportunity as Opportunity
from drainsinkhorn.theory.work import opportunity as opportunity
from drainsinkhorn.theory.work import padding as padding
from drainsinkhorn.theory.work import removable as removable
from drainsinkhorn.theory.work import saved as saved
from drainsinkhorn.theory.work import slots as slots
from drainsinkhorn.theory.work import windows as windows
