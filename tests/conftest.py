from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import pytest
from hypothesis import settings

# One profile everywhere: examples are derandomised so that a failure on one machine is a failure on all.
settings.register_profile("drain", derandomize=True, deadline=None, database=None)
settings.load_profile("drain")


def needs(module: str) -> Any:
    """Import an optional library, or skip with the reason; in CI nothing is optional."""
    if os.environ.get("DRAIN_CI"):
        with warnings.catch_warnings():
            # What a library warns of while it is imported is not ours to mend.
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    return pytest.importorskip(module, reason=f"{module} is not installed")
