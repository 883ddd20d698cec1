"""The named campaigns, each a module with `campaign(scale, data, device)`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from drainsinkhorn.model.errors import OptionsError
from drainsinkhorn_bench.plan import SCALES, Campaign

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
    return _campaigns()[name](scale, data, device)


def _campaigns() -> dict[str, Callable[[str, Path | None, str], Campaign]]:
    """The campaigns by name, imported on first use, so that listing NAMES stays cheap."""
    from drainsinkhorn_bench.named import (
        attribution,
        grouping,
        imagenet,
        lidar,
        metropt3,
        packer19,
        precision,
        scaleout,
        transfer,
    )

    modules = (metropt3, packer19, imagenet, lidar, transfer, grouping, attribution, precision, scaleout)
    return {module.__name__.rpartition(".")[2]: module.campaign for module in modules}
