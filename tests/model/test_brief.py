"""Short texts and tables about objects: no contents of arrays, no markup from names."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.core.events import Retired
from drainsinkhorn.model.brief import brief, call, count_of, html_curve, html_table
from drainsinkhorn.model.outcomes import Outcomes
from tests.conftest import needs

EVIL = "<script>alert('x')</script>&\""


class Checker(HTMLParser):
    """Collects tags and texts, and checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        for _, value in attrs:
            assert "url" not in value
            assert "http" not in value

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def parsed(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    assert not checker.open
    assert "script" not in checker.tags
    # Colours would be unreadable in a light or in a dark notebook.
    assert not re.search(r"[^-]color:|background", text)
    return checker


def test_values() -> None:
    assert brief(np.zeros((3, 2))) == "(3, 2) float64"
    assert brief(np.zeros(3, np.float32)) == "(3,) float32"
    assert brief([1.0] * 1000) == "list of 1000"
    assert brief(np.float64(0.05)) == brief(0.05) == "0.05"
    assert brief(7) == "7"
    assert brief("gaussian") == "'gaussian'"
    assert len(brief("x" * 1000)) == 60
    assert "\n" not in brief("a\nb" * 10)
    assert call("Thing", "", "3 parts", x=np.zeros(2), y=None) == "Thing(3 parts, x=(2,) float64)"
    assert (count_of(1, "lane"), count_of(2000, "lane")) == ("1 lane", "2,000 lanes")


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_arrays_of_other_libraries(library: str) -> None:
    module = needs(library)
    zeros = module.zeros((3, 2)) if library == "torch" else module.numpy.zeros((3, 2))
    assert brief(zeros) == "(3, 2) float32"


def test_problems_potentials_and_instances_show_no_contents() -> None:
    x = np.arange(6.0).reshape(3, 2)
    start = ds.Potentials(np.zeros(3), np.zeros(3))
    assert repr(start) == "Potentials(f=(3,) float64, g=(3,) float64)"
    assert repr(ds.Problem(x=x, y=x, eps=0.5)) == "Problem(x=(3, 2) float64, y=(3, 2) float64, eps=0.5)"
    full = ds.Problem(x=x, y=x, eps=0.5, a=np.ones(3), tol=1e-4, init=start, cost="cosine", chain="k")
    assert "a=(3,) float64, eps=0.5, tol=0.0001, init=Potentials(f=(3,) float64" in repr(full)
    assert "cost='cosine', chain='k')" in repr(full)
    assert repr(ds.Problem(eps=1.0, cost=np.zeros((3, 4)))) == "Problem(eps=1, cost=(3, 4) float64)"
    (result,) = ds.solve([full], backend="reference")
    assert repr(result.instance).startswith("Instance(x=(3, 2) float64, y=(3, 2) float64, a=(3,) float64")


def test_events_count_lanes() -> None:
    seen: list[Any] = []
    x = np.random.default_rng(0).normal(size=(4, 50, 2))
    solution = ds.solve(x, x + 1, eps=0.5, observe=seen.append, backend="reference")
    retired = next(event for event in seen if isinstance(event, Retired))
    assert re.fullmatch(r"Retired\(\d lanes?, \d CONVERGED\)", repr(retired))
    assert repr(solution.outcomes) == "Outcomes(4 CONVERGED)"
    assert repr(Outcomes()) == "Outcomes(empty)"
    assert re.fullmatch(r"Ledger\(4 problems, slots=\d+, static=\d+, removed=\d+, audits=\d+\)", repr(solution.ledger))


def test_tables_escape_texts() -> None:
    seen = parsed(html_table(EVIL, (EVIL, "n"), [(EVIL, 1234), (None, 0.12345)], EVIL))
    assert seen.texts == [EVIL, EVIL, "n", EVIL, "1,234", "0.123", EVIL]


def test_curves_have_the_area_of_their_values() -> None:
    assert html_curve([], "none") == html_curve([0, 0], "none") == ""
    text = html_curve([4, 2, 1], EVIL, width=30, height=8)
    assert parsed(text).texts == [EVIL]
    assert "M0 8L0.0 0.0h10.0L10.0 4.0h10.0L20.0 6.0h10.0L30 8Z" in text
    assert text.count("h") < 400
    assert len(html_curve(list(range(100_000, 0, -1)), "long")) < 8000
