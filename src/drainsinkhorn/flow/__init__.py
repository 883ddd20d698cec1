"""Couplings for flow matching: a sampler like torchcfm's, and minibatches coupled ahead of training."""

from drainsinkhorn.flow.prefetch import CoupledBatches as CoupledBatches
from drainsinkhorn.flow.prefetch import CouplingDataset as CouplingDataset
from drainsinkhorn.flow.prefetch import Pairs as Pairs
from drainsinkhorn.flow.prefetch import couple_minibatches as couple_minibatches
from drainsinkhorn.flow.sampler import OTPlanSampler as OTPlanSampler
