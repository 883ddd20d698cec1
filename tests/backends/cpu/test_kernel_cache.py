"""Compiled kernels on disk are those of the sources at hand, and processes share them."""

from __future__ import annotations

import ast
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import needs

numba = needs("numba")

import drainsinkhorn as ds  # noqa: E402
from drainsinkhorn.backends.cpu import kernel_cache  # noqa: E402

fcntl: Any = pytest.importorskip("fcntl", reason="processes wait for each other where there are locks")

SCRIPT = """
import os, sys, time
import drainsinkhorn
from drainsinkhorn.backends.cpu import kernel_cache

@kernel_cache.kernel_compiler()
def twice(x):
    return 2 * x
"""
COMPILE = """
# All begin together.
open(f"{sys.argv[1]}-{os.getpid()}", "w").close()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
with kernel_cache.compiling("tiny"):
    assert twice(2.0) == 4.0
    # A compilation that takes longer.
    time.sleep(0.5 * sum(twice.stats.cache_misses.values()))
print(sum(twice.stats.cache_misses.values()))
"""
HOLD = """
with kernel_cache.compiling("tiny"):
    print(os.getpid(), flush=True)
    time.sleep(600)
"""
FORK = """
with kernel_cache.compiling("tiny"):
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that other tests noted is known, and nothing that a test notes is known to others."""
    kernel_cache._warn_unsaved.cache_clear()
    monkeypatch.setattr(kernel_cache, "_unsaved", [])


def start(tmp_path: Path, then: str, *args: str) -> subprocess.Popen[str]:
    """A process with a kernel cache in tmp_path / "cache"."""
    script = tmp_path / "script.py"
    # Written again, the file would be empty at the moment at which a process that was started before may read it.
    if not script.exists() or script.read_text() != SCRIPT + then:
        script.write_text(SCRIPT + then)
    known = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, str(script), *args], stdout=pipe, stderr=pipe, text=True, env=known)


def folder_of(parent: Path, name: str, *, age: float = 0.0) -> Path:
    """A folder as another version of this library leaves it."""
    folder = parent / name
    folder.mkdir(parents=True)
    (folder / kernel_cache.IN_USE).touch()
    when = time.time() - age
    os.utime(folder / kernel_cache.IN_USE, (when, when))
    (folder / "kernel.nbi").touch()
    return folder


def test_another_source_is_another_folder(tmp_path: Path) -> None:
    kernel, helper = tmp_path / "kernel.py", tmp_path / "helper.py"
    kernel.write_text("from helper import two\n")
    helper.write_text("def two(): return 2\n")
    before = kernel_cache.fingerprint([kernel, helper])
    assert kernel_cache.fingerprint([kernel, helper]) == before
    assert kernel_cache.fingerprint([kernel, helper], "another version") != before
    helper.write_text("def two(): return 3\n")
    assert kernel_cache.fingerprint([kernel, helper]) != before


def test_kernels_lie_in_the_folder_of_their_version_and_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    @kernel_cache.kernel_compiler()
    def twice(x: float) -> float:
        return 2 * x

    assert twice(2.0) == 4.0
    assert str(tmp_path) == numba.config.CACHE_DIR, "others' functions are kept where they were"
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith(f"drainsinkhorn-{ds.__version__}-")
    assert list(folder.rglob("*.nbi")), "kept on disk"


def test_only_our_own_stale_unused_folders_are_removed(tmp_path: Path) -> None:
    old = 2 * kernel_cache.STALE
    others = folder_of(tmp_path, "kernels-old", age=old), folder_of(tmp_path, "numba-0.68", age=old)
    (tmp_path / "drainsinkhorn-results").mkdir()
    recent = folder_of(tmp_path, "drainsinkhorn-0.2.0-abc")
    stale = folder_of(tmp_path, "drainsinkhorn-0.0.1-abc", age=old)
    used = folder_of(tmp_path, "drainsinkhorn-0.0.2-abc", age=old)
    with (used / kernel_cache.IN_USE).open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        own = kernel_cache.kernel_folder(str(tmp_path))
        assert own is not None
        kept = {own, *others, recent, used, tmp_path / "drainsinkhorn-results"}
        assert {*tmp_path.iterdir()} == kept
        assert not stale.exists()
    assert all((folder / "kernel.nbi").exists() for folder in (*others, recent, used))


def test_a_folder_in_use_is_not_removed_by_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "STALE", -1.0)
    holder = start(tmp_path, HOLD)
    try:
        assert holder.stdout is not None
        assert int(holder.stdout.readline()) == holder.pid
        (folder,) = (tmp_path / "cache").iterdir()
        kernel_cache._remove_stale_folders(tmp_path / "cache" / "drainsinkhorn-other")
        assert folder.exists()
    finally:
        holder.kill()
        holder.communicate()
    kernel_cache._remove_stale_folders(tmp_path / "cache" / "drainsinkhorn-other")
    assert not folder.exists()


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    go = tmp_path / "go"
    processes = [start(tmp_path, COMPILE, str(go)) for _ in range(4)]
    while len(list(tmp_path.glob("go-*"))) < 4 and all(process.poll() is None for process in processes):
        time.sleep(0.01)
    go.touch()
    ends = [process.communicate(timeout=120) for process in processes]
    assert sorted(out for out, _ in ends) == ["0\n", "0\n", "0\n", "1\n"], ends
    waited = [error.count("waiting for another process, which compiles CPU kernels (tiny)") for _, error in ends]
    assert sorted(waited) == [0, 1, 1, 1]


def test_a_process_that_is_killed_while_it_compiles_is_not_waited_for(tmp_path: Path) -> None:
    holder, go = start(tmp_path, HOLD), tmp_path / "go"
    assert holder.stdout is not None
    assert int(holder.stdout.readline()) == holder.pid
    go.touch()
    waiter = start(tmp_path, COMPILE, str(go))
    assert waiter.stderr is not None
    assert "waiting for another process" in waiter.stderr.readline()
    holder.kill()
    holder.communicate()
    # Well before PATIENCE.
    assert waiter.communicate(timeout=60)[0] == "1\n"


def test_a_child_of_a_process_that_died_while_it_compiled_holds_nobody_up(tmp_path: Path) -> None:
    parent, go = start(tmp_path, FORK), tmp_path / "go"
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        parent.wait(timeout=60)
        go.touch()
        # On a busy machine the second process may say that it compiles; it must not say that it waits.
        compiled, said = start(tmp_path, COMPILE, str(go)).communicate(timeout=60)
        assert compiled == "1\n"
        assert "waiting" not in said
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()


def test_waiting_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_cache, "PATIENCE", 0.2)
    folder = kernel_cache.kernel_folder(str(tmp_path))
    assert folder is not None
    with (folder / kernel_cache.COMPILING).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with kernel_cache.compiling("tiny"):
            assert "waiting for another process" in caplog.text
    caplog.clear()
    with kernel_cache.compiling("tiny"):
        assert not caplog.text, "all is there, and nobody is asked"


def test_without_a_folder_kernels_are_compiled_and_a_warning_says_so_once(tmp_path: Path) -> None:
    package = tmp_path / "drainsinkhorn"
    shutil.copytree(Path(ds.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "backends" / "cpu" / "__pycache__").write_text("a file where a folder would be made")
    then = """
import warnings
import drainsinkhorn.backends.cpu.pack
assert drainsinkhorn.__file__.startswith(sys.argv[1])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for what in ("tiny", "small"):
        with kernel_cache.compiling(what):
            assert twice(2.0) == 4.0
(warning,) = caught
assert warning.category is drainsinkhorn.KernelCacheWarning
print(warning.message)
"""
    script = tmp_path / "script.py"
    # Written again, the file would be empty at the moment at which a process that was started before may read it.
    if not script.exists() or script.read_text() != SCRIPT + then:
        script.write_text(SCRIPT + then)
    nowhere = str(tmp_path / "script.py")
    homes = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA", "NUMBA_CACHE_DIR"), nowhere)
    known = os.environ | homes | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, env=known, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "are not kept on disk" in ran.stdout
    assert "set NUMBA_CACHE_DIR" in ran.stdout


def test_a_full_disk_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "save", full)

    @kernel_cache.kernel_compiler()
    def thrice(x: float) -> float:
        return 3 * x

    with pytest.warns(ds.KernelCacheWarning, match="No space left on device"), kernel_cache.compiling("full"):
        assert thrice(2.0) == 6.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with kernel_cache.compiling("full"):
            assert thrice(2) == 6
    assert not list(tmp_path.rglob("*.complete")), "nobody is told that kernels are there"


def test_the_name_of_the_cache_depends_on_all_that_kernels_contain() -> None:
    sources, package = set(kernel_cache.kernel_sources()), Path(ds.__file__).parent
    for kernels in sorted((package / "backends/cpu").glob("*kernels.py")):
        for each in ast.walk(ast.parse(kernels.read_text())):
            if not isinstance(each, ast.ImportFrom) or not any(alias.name.isupper() for alias in each.names):
                continue
            path = package.parent.joinpath(*(each.module or "").split(".")).with_suffix(".py")
            assert not path.exists() or path in sources, f"{kernels.name} contains constants of {each.module}"
