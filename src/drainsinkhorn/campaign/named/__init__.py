"""The named campaigns, each a module with `campaign(scale, data, device)`."""

from __future__ import annotations

import importlib
from pathlib import Path

from drainsinkhorn.campaign.plan import SCALES, Campaign
from drainsinkhorn.model.errors import OptionsError

NAMES = ("metropt3", "packer19", "imagenet", "lidar", "transfer", "grouping", "attribution", "precision", "scaleout")


def load(name: str, *, scale: str = "small", data: Path | None = None, device: str = "cpu") -> Campaign:
    """A campaign by name.

    Args:
        name: One of NAMES.
        scale: "small", minutes on a laptop; "full", the paper's sizes.
        data: A folder with the public originals or their npz subsets; None: generated data, and the manifest says so.
        device: "cpu" or "cuda".
    """
    if name not in NAMES:
        raise OptionsError(f"there is no campaign {name!r}; there are {', '.join(NAMES)}")
    if scale not in SCALES:
        raise OptionsError(f"scale must be one of {list(SCALES)}, got {scale!r}")
    if data is not None and not data.is_dir():
        raise OptionsError(f"--data must be a folder with data files, and {data} is none")
    return importlib.import_module(f"drainsinkhorn.campaign.named.{name}").campaign(scale, data, device)
