"""Couplings for flow matching: a sampler like torchcfm's, and minibatches coupled ahead of training."""

from drainsinkhorn.apps.flow import CoupledBatches as CoupledBatches
from drainsinkhorn.apps.flow import CouplingDataset as CouplingDataset
from drainsinkhorn.apps.flow import OTPlanSampler as OTPlanSampler
from drainsinkhorn.apps.flow import Pairs as Pairs
from drainsinkhorn.apps.flow import couple_minibatches as couple_minibatches
