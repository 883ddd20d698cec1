"""Campaigns: frozen, paired experiments. A campaign is data; one runner runs them all, one report shows them."""

from drainsinkhorn.campaign.plan import Arm as Arm
from drainsinkhorn.campaign.plan import Campaign as Campaign
from drainsinkhorn.campaign.plan import Contrast as Contrast
from drainsinkhorn.campaign.plan import Finding as Finding
from drainsinkhorn.campaign.plan import Loaded as Loaded
from drainsinkhorn.campaign.plan import Outcome as Outcome
from drainsinkhorn.campaign.plan import Place as Place
from drainsinkhorn.campaign.plan import Study as Study
from drainsinkhorn.campaign.plan import Unit as Unit
from drainsinkhorn.campaign.plan import Work as Work
