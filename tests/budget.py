"""How long the tests of each directory take, and may take, so that the whole suite stays below eight minutes."""

from __future__ import annotations

from collections import Counter

import pytest

BUDGET = {
    "bench": 75,
    "src": 5,
    "tests": 10,
    "tests/apps": 75,
    "tests/backends": 70,
    "tests/backends/certificate": 5,
    "tests/backends/cpu": 25,
    "tests/backends/keops": 5,
    "tests/backends/ottjax": 95,
    "tests/backends/triton": 195,
    "tests/cli": 25,
    "tests/core": 15,
    "tests/docs": 30,
    "tests/examples": 5,
    "tests/fleet": 65,
    "tests/grad": 40,
    "tests/model": 2,
    "tests/numerics": 10,
    "tests/outside": 15,
    "tests/plans": 5,
    "tests/release": 5,
    "tests/run": 80,
    "tests/serve": 5,
    "tests/testing": 30,
    "tests/theory": 5,
    "tests/workloads": 3,
}
"""Seconds of one core for the tests of each directory, where nothing that JAX compiles is kept from an earlier run.

They add up to fifteen minutes of one core. Two cores run them in less than eight, with a minute for what tests do not
count: workers start, and collect all tests.
"""

_seconds: Counter[str] = Counter()


def directory(nodeid: str) -> str:
    """The entry of `BUDGET` that a test counts for: its folder within tests, or the distribution it belongs to."""
    folders = nodeid.split("::")[0].split("/")[:-1]
    return "/".join(folders) if folders[:1] == ["tests"] else folders[0]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the time of a test for its directory; under xdist its workers report here too."""
    _seconds[directory(report.nodeid)] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was used of each budget."""
    terminalreporter.section("seconds of tests by directory")
    for folder, seconds in sorted(_seconds.items()):
        budget = BUDGET.get(folder, 0)
        excess = "   over its budget: see --durations" if seconds > budget else ""
        terminalreporter.write_line(f"{seconds:7.1f} of {budget:3d}  {folder}{excess}")
    terminalreporter.write_line(f"{sum(_seconds.values()):7.1f} of {sum(BUDGET.values())}  in all")
