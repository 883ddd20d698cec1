"""The public import paths: each can be imported, and has its public names."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from tests.conftest import needs

PUBLIC: dict[str, str] = {
    "drainsinkhorn": """Audit BackendUnavailable Client ContractError ConvergenceWarning Cost DeadlineError Distances
        Divergences DrainError Feed FeedClosed FeedFull Formula Geometric Instance Interrupted KernelCacheWarning Ledger
        MODES Mode NotConverged ObserverWarning Options OptionsError OutOfMemory PointCost Potentials Problem
        ProblemError Profile Residual Result Solution Status SubstitutionWarning TransportCost apply barycentric_map
        divergence extend partners plan problems sample solve stream to_frame top_match transport_cost
        __version__""",
    "drainsinkhorn.flow": "CoupledBatches CouplingDataset OTPlanSampler Pairs couple_minibatches",
    "drainsinkhorn.flow.matchers": """ConditionalFlowMatcher EntropicOptimalTransportConditionalFlowMatcher
        ExactOptimalTransportConditionalFlowMatcher OTPlanSampler SchrodingerBridgeConditionalFlowMatcher
        TargetConditionalFlowMatcher VariancePreservingConditionalFlowMatcher pad_t_like_x""",
    "drainsinkhorn.cells": "Table Timepoints couple_timepoints",
    "drainsinkhorn.sensors": "Drift Flow Scores frame_flow windows",
    "drainsinkhorn.plots": "displacement drift matches plan style survival transitions widths",
    "drainsinkhorn.ott": "solve",
    "drainsinkhorn.pot": "OTResult sinkhorn sinkhorn2 solve solve_batch solve_sample solve_sample_batch",
    "drainsinkhorn.geomloss": "SamplesLoss",
    "drainsinkhorn.sklearn": "EntropicTransport",
    "drainsinkhorn.grad.torch": "divergence potentials value",
    "drainsinkhorn.grad.jax": "divergence potentials value",
    "drainsinkhorn.parallel": "Fleet FleetStream LocalFleet RayFleet RowShardedBackend",
    "drainsinkhorn.serve": "Remote RemoteError RemoteResult Server ServerLimits",
    "drainsinkhorn.theory": """Estimate Forecast Modal Opportunity Price Transfer WidthCost modal_response opportunity
        padding profile_width_cost removable saved slots survival windows""",
    "drainsinkhorn.testing": """Bench PROMISES Script ScriptedBackend check_backend marginal_errors scripted""",
}
"""Modules that users import, and what they import from each. A name may be added; none may be removed."""

NEEDS = {
    "drainsinkhorn.flow": "torch",
    "drainsinkhorn.flow.matchers": "torchcfm",
    "drainsinkhorn.ott": "ott",
    "drainsinkhorn.geomloss": "torch",
    "drainsinkhorn.sklearn": "sklearn",
    "drainsinkhorn.grad.torch": "torch",
    "drainsinkhorn.grad.jax": "jax",
}
"""Optional libraries that a module needs to be imported."""

OPTIONAL = (
    "torch",
    "jax",
    "triton",
    "numba",
    "ray",
    "matplotlib",
    "typer",
    "rich",
    "sklearn",
    "scipy",
    "ott",
    "pykeops",
    "starlette",
    "uvicorn",
    "prometheus_client",
)


@pytest.mark.parametrize("path", PUBLIC)
def test_every_public_name_is_there(path: str) -> None:
    if path in NEEDS:
        needs(NEEDS[path])
    module = import_module(path)
    absent = [name for name in PUBLIC[path].split() if not hasattr(module, name)]
    assert not absent


@pytest.mark.parametrize("path", [path for path in PUBLIC if path not in NEEDS])
def test_importing_loads_no_optional_library(path: str) -> None:
    code = f"import sys, {path}; print(*[name for name in {OPTIONAL} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
