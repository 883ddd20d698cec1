"""ServerLimits and the memory of requests."""

from __future__ import annotations

import math
from typing import Any

import pytest

import drainsinkhorn as ds
from drainsinkhorn.serve import ServerLimits
from drainsinkhorn.serve.limits import MemoryBudget, Refusal


@pytest.mark.parametrize(
    "limits",
    [{"capacity": 0}, {"max_body": 1.5}, {"head_timeout": 0}, {"idle_timeout": math.inf}, {"deadline": 601.0}],
    ids=str,
)
def test_invalid_limits_are_named(limits: dict[str, Any]) -> None:
    with pytest.raises(ds.OptionsError, match=next(iter(limits))):
        ServerLimits(**limits)


def test_json_may_have_a_share_of_what_is_unpacked() -> None:
    assert ServerLimits(max_unpacked=2**24).max_json == 2**20
    assert ServerLimits(max_body=100).max_json == 100


def test_memory_is_shared_and_given_back() -> None:
    memory = MemoryBudget(100)
    with memory.share() as one, memory.share() as other:
        one.resize(60)
        other.resize(40)
        with pytest.raises(Refusal) as caught:
            other.resize(41)
        assert (caught.value.status, memory.used) == (429, 100)
        one.resize(10)
        other.resize(90)
        with pytest.raises(Refusal) as caught:
            one.resize(101)
        assert caught.value.status == 413
    assert memory.used == 0
