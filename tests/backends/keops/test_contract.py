"""Every promise of the contract on the KeOps backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.conftest import needs

torch = needs("torch")
needs("pykeops")

from drainsinkhorn.backends.keops import KeopsBackend  # noqa: E402
from drainsinkhorn.testing import PROMISES, Bench  # noqa: E402

LIKES: dict[str, Callable[[Any], Any]] = {
    "numpy float64": np.asarray,
    "torch float32": lambda a: torch.as_tensor(a).float(),
}
# One dimension and two formulas: PyKeOps takes seconds to compile each.
SHAPES = [(13, 17, 3)]
CASES: dict[str, tuple[Any, str]] = {
    "momentum": (KeopsBackend(acceleration="momentum"), "torch float32"),
    "plain": (KeopsBackend(), "numpy float64"),
    "float64": (KeopsBackend(precision="float64"), "numpy float64"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("promise", PROMISES)
def test_promise(promise: str, case: str) -> None:
    backend, like = CASES[case]
    for shape in SHAPES:
        PROMISES[promise](Bench(backend, LIKES[like], shape))
