from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from drainsinkhorn.model.errors import OptionsError
from drainsinkhorn_bench import compare, probe

FAKE = '''
"""A library that answers at once, or after a while."""
import time
from collections import namedtuple
import numpy as np

Problem = namedtuple("Problem", "x y eps")
Result = namedtuple("Result", "potentials depth")

def solve(problems, tol, **settings):
    time.sleep({sleep})
    return [Result(solved(p), 3) for p in problems]

def solved(p):
    x, y = np.asarray(p.x, dtype=float), np.asarray(p.y, dtype=float)
    cost = ((x[:, None] - y[None]) ** 2).sum(-1)
    f, g = np.zeros(len(x)), np.zeros(len(y))
    for _ in range({cycles}):
        f = -p.eps * np.log(np.exp((g[None] - cost) / p.eps).mean(1))
        g = -p.eps * np.log(np.exp((f[:, None] - cost) / p.eps).mean(0))
    return f, g
'''


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three commits: a base, one that sleeps longer, one that gives wrong answers."""
    root = tmp_path / "repository"
    package = root / "src" / "drainsinkhorn"
    package.mkdir(parents=True)
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "test@example.org")

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    for tag, sleep, cycles in (("base", 0.02, 40), ("slow", 0.15, 40), ("wrong", 0.02, 1)):
        (package / "__init__.py").write_text(FAKE.format(sleep=sleep, cycles=cycles))
        git("add", "-A")
        git("commit", "-qm", tag)
        git("tag", tag)
    return root


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One case of two problems, in a copy of the probe."""
    source = Path(probe.__file__).read_text()
    start, end = source.index("CASES: dict"), source.index('"""Generated problems by name')
    case = 'CASES: dict[str, dict[str, Any]] = {"two": {"count": 2, "n": 6, "d": 2, "eps": 1.0}}\n'
    copy = tmp_path / "probe.py"
    copy.write_text(source[:start] + case + source[end:])
    monkeypatch.setattr(probe, "__file__", str(copy))
    monkeypatch.setattr(probe, "CASES", {"two": {}})


@pytest.mark.usefixtures("small")
def test_a_slower_commit_is_found_and_its_worktree_is_gone(repository: Path):
    (found,) = compare.compare(repository, "base", "slow", rounds=4)
    assert found.verdict == "slower"
    assert found.head is not None
    assert found.head.ratio is not None
    assert found.head.ratio < 0.8
    assert found.head.wins == 0
    assert found.noise >= 1
    listed = subprocess.run(
        ["git", "-C", str(repository), "worktree", "list"], capture_output=True, text=True, check=True
    ).stdout
    assert len(listed.strip().splitlines()) == 1


@pytest.mark.usefixtures("small")
def test_wrong_answers_are_void(repository: Path):
    (found,) = compare.compare(repository, "base", "wrong", rounds=2)
    assert found.verdict.startswith("void: head has a residual of")
    assert found.head is None


def test_a_difference_within_the_noise_is_none():
    noisy = {
        "base": [1.0, 1.1, 0.9, 1.0, 1.05],
        "again": [1.1, 1.0, 1.0, 0.9, 1.0],
        "head": [0.97, 1.05, 0.9, 1.0, 1.0],
    }
    assert compare.judge("case", noisy).verdict == "no difference beyond the noise"
    faster = {**noisy, "head": [second / 2 for second in noisy["base"]]}
    found = compare.judge("case", faster)
    assert found.verdict == "faster"
    assert found.head is not None
    assert found.head.ratio == pytest.approx(2.0)
    slower = {**noisy, "head": [2 * second for second in noisy["base"]]}
    assert compare.judge("case", slower).verdict == "slower"


def test_what_cannot_be_compared_says_why(repository: Path, tmp_path: Path):
    with pytest.raises(compare.CompareError, match="nowhere"):
        compare.compare(repository, "nowhere")
    with pytest.raises(OptionsError, match="there is no case 'huge'"):
        compare.compare(repository, "base", cases=["huge"])
    with pytest.raises(OptionsError, match="rounds must be at least 2"):
        compare.compare(repository, "base", rounds=1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(compare.CompareError, match="is in no git repository"):
        compare.repository_of(tmp_path / "empty")
    assert compare.repository_of(repository / "src") == repository
