"""Couplings for flow matching: a sampler like torchcfm's, and minibatches coupled ahead of training."""

from drainsinkhorn.apps.flow.dataset import CouplingDataset as CouplingDataset
from drainsinkhorn.apps.flow.minibatches import Pairs as Pairs
from drainsinkhorn.apps.flow.minibatches import couple_minibatches as couple_minibatches
from drainsinkhorn.apps.flow.prefetch import CoupledBatches as CoupledBatches
from drainsinkhorn.apps.flow.sampler import OTPlanSampler as OTPlanSampler
