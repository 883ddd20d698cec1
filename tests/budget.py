"""How long the tests of each directory take, and may take, so that the whole suite stays below eight minutes."""

from __future__ import annotations

from collections import Counter

import pytest

BUDGET = {
    "bench": 130,
    "src": 30,
    "tests": 10,
    "tests/apps": 100,
    "tests/backends": 30,
    "tests/backends/certificate": 10,
    "tests/backends/cpu": 50,
    "tests/backends/keops": 20,
    "tests/backends/ottjax": 90,
    "tests/backends/triton": 300,
    "tests/cli": 60,
    "tests/core": 30,
    "tests/docs": 70,
    "tests/examples": 10,
    "tests/fleet": 100,
    "tests/grad": 30,
    "tests/model": 15,
    "tests/numerics": 20,
    "tests/outside": 40,
    "tests/plans": 20,
    "tests/release": 10,
    "tests/run": 90,
    "tests/serve": 35,
    "tests/testing": 60,
    "tests/theory": 20,
    "tests/workloads": 10,
}
"""Seconds of one core for the tests of each directory, on a machine where two cores run the suite in eight minutes."""

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
