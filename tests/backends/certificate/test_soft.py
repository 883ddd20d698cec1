"""Certificates of problems with a soft marginal compare the plan with what the potentials ask for, on every device."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import certificate
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.run.validate import validate

RNG = np.random.default_rng(0)
PROBLEM = ds.Problem(x=RNG.normal(size=(20, 2)), y=RNG.normal(size=(30, 2)), eps=0.3, rho=(0.5, 2.0))


@pytest.mark.parametrize("on_device", [False, True])
def test_arrays_on_a_device_are_certified_as_those_on_the_host(on_device: bool) -> None:
    (result,) = ds.solve([PROBLEM], backend="reference", tol=1e-6)
    instance, potentials = validate(PROBLEM, 1e-6), result.potentials
    emission = Emission([potentials.f], [potentials.g], [False], [instance])
    with (
        mock.patch.object(certificate, "on_cuda", return_value=on_device),
        mock.patch.object(
            certificate,
            "certify_batches",
            side_effect=lambda batch: [] if not batch else pytest.fail("certified on the device"),
        ),
    ):
        alone, together = certificate.certify(instance, potentials), certificate.certificates(emission, [False])
    assert alone.worst <= 1e-6
    assert (alone.row, alone.col, alone.band) == (together.row[0], together.col[0], together.band[0])


def test_a_state_out_of_range_is_far_from_optimal_and_not_broken() -> None:
    """Masses and what they are compared with exceed float64; a residual of NaN would end the lane."""
    instance = validate(PROBLEM, 1e-6)
    potentials = ds.Potentials(np.full(20, -1e5), np.full(30, 3e5))
    residual = certificate.certify(instance, potentials)
    assert (residual.row, residual.col, residual.band) == (math.inf, math.inf, math.inf)
    broken = certificate.certify(instance, ds.Potentials(np.full(20, math.nan), potentials.g))
    assert math.isnan(broken.worst)
