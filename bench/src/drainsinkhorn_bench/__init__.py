"""Campaigns: frozen, paired experiments. A campaign is data; one runner runs them all, one report shows them."""

from drainsinkhorn_bench.plan import Arm as Arm
from drainsinkhorn_bench.plan import Campaign as Campaign
from drainsinkhorn_bench.plan import Contrast as Contrast
from drainsinkhorn_bench.plan import Finding as Finding
from drainsinkhorn_bench.plan import Loaded as Loaded
from drainsinkhorn_bench.plan import Outcome as Outcome
from drainsinkhorn_bench.plan import Place as Place
from drainsinkhorn_bench.plan import Study as Study
from drainsinkhorn_bench.plan import Unit as Unit
from drainsinkhorn_bench.plan import Work as Work

__version__ = "0.1.0"
