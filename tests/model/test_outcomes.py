"""Columns of outcomes: blocks of arrays behave as a list of their rows."""

import copy
import pickle

import numpy as np
import pytest

from drainsinkhorn.model.outcomes import Blocks, Outcome, Outcomes
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.model.result import Residual
from drainsinkhorn.model.status import Status


def rows(blocks):
    return [np.asarray(entry).tolist() for entry in blocks]


@pytest.fixture
def mixed():
    """A block of three, a list of two, and a block of one; and the same as a list."""
    first, middle, last = np.arange(6.0).reshape(3, 2), [np.ones(1), None], np.full((1, 4), 7.0)
    blocks = Blocks(first)
    blocks.extend(Blocks(middle))
    blocks.extend(Blocks(last))
    return blocks, [*first, *middle, *last]


class TestBlocks:
    def test_entries_are_those_of_the_list(self, mixed):
        blocks, entries = mixed
        assert len(blocks) == 6
        for place in range(-6, 6):
            np.testing.assert_array_equal(blocks[place], entries[place])
        with pytest.raises(IndexError):
            blocks[6]

    def test_slices_are_those_of_the_list(self, mixed):
        blocks, entries = mixed
        for start in range(-1, 7):
            for stop in range(-1, 7):
                assert rows(blocks[start:stop]) == rows(entries[start:stop])
        assert rows(blocks[::2]) == rows(entries[::2])

    def test_removing_the_end_keeps_the_beginning(self, mixed):
        blocks, entries = mixed
        for count in (6, 4, 2, 0):
            del blocks[count:]
            assert rows(blocks) == rows(entries[:count])

    def test_appending_changes_no_list_that_was_given(self):
        given = [1]
        blocks = Blocks(given)
        blocks.append(2)
        blocks.extend(Blocks([3]))
        assert given == [1]
        assert list(blocks) == [1, 2, 3]

    def test_whole_is_the_block_of_all_entries(self, mixed):
        block = np.zeros((3, 2))
        assert Blocks(block).whole() is block
        assert mixed[0].whole() is None
        assert Blocks([1]).whole() is None
        assert Blocks().whole() is None

    def test_copies_and_pickles(self, mixed):
        blocks, entries = mixed
        for again in (copy.copy(blocks), copy.deepcopy(blocks), pickle.loads(pickle.dumps(blocks))):
            assert rows(again) == rows(entries)


def test_rows_of_outcomes_are_what_was_appended():
    f, g, residual = np.zeros((2, 3)), np.ones((2, 4)), Residual(1e-4, 2e-4, 1e-6)
    outcomes = Outcomes(f=Blocks(f), g=Blocks(g))
    assert len(outcomes) == 0, "rows without a ticket do not count"
    outcome = Outcome(5, Potentials(f[0], g[0]), residual, Status.CONVERGED, 3, eps=0.5)
    outcomes.append(outcome)
    assert len(outcomes) == len(outcomes.f) == 1
    assert outcomes[0].ticket == 5
    assert outcomes[0].residual == residual
