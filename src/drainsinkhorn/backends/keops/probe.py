"""Whether PyKeOps runs here, found out in another process, because a failure of its CUDA path ends the process.

PyKeOps 2.3 compiles a CUDA formula in a C++ function that it calls through ctypes (`Compile` of `nvrtc_jit.cpp`). Every
failed call of the driver or of NVRTC in there throws a C++ exception that nothing catches: the process is aborted while
it says "Generating code for ...". NVRTC of CUDA 13 moreover opens `libcuda.so.1` itself and calls what it looks up
there without a check; where it does not find it, the process dies of a segmentation fault in the same place. No
Python exception is raised, so only a trial in another process shows whether PyKeOps runs.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from functools import lru_cache
from typing import NamedTuple

from drainsinkhorn.model.errors import BackendUnavailable

SECONDS = 300
"""What a first compilation may take, on a busy machine."""

_SCRIPT = """
import json, sys
say = lambda **facts: print("PROBE " + json.dumps(facts), flush=True)
import torch, pykeops
say(stage="imported", pykeops=pykeops.__version__, torch=torch.__version__, cuda=torch.version.cuda)
from pykeops.torch import Genred
points = torch.zeros((2, 1), device=sys.argv[1])
Genred("SqDist(x, y)", ["x = Vi(1)", "y = Vj(1)"], reduction_op="LogSumExp", axis=1)(points, points).cpu()
say(stage="ran")
"""


class Found(NamedTuple):
    """What the trial process did: whether it ran to its end, whether it imported PyKeOps, and its last message."""

    ran: bool
    imported: bool
    text: str


def require(device: str) -> None:
    """Raise BackendUnavailable if PyKeOps cannot reduce on that kind of device ("cpu" or "cuda")."""
    for library in ("pykeops", "torch"):
        if importlib.util.find_spec(library) is None:
            raise BackendUnavailable(f"backend 'keops' needs {library}; pip install 'drainsinkhorn[keops]'")
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise BackendUnavailable(
            f"backend 'keops' compiles its formulas and finds no C++ compiler {compiler!r}; install g++ or set CXX"
        )
    if not has_driver():
        if device == "cuda":
            raise BackendUnavailable("backend 'keops' finds no CUDA driver (libcuda); use arrays on the CPU")
        # Without a driver PyKeOps has no CUDA path that could fail.
        return
    trial = try_reduction(device)
    if not trial.ran:
        elsewhere = "; arrays on the CPU can run" if device == "cuda" and try_reduction("cpu").ran else ""
        raise BackendUnavailable(
            f"backend 'keops' cannot run on {device}: tried in a process of its own, PyKeOps {trial.text}{elsewhere}"
        )


@lru_cache(maxsize=1)
def has_driver() -> bool:
    """Whether there is a CUDA driver; asked once, since looking for a library starts a process."""
    return ctypes.util.find_library("cuda") is not None


@lru_cache(maxsize=4)
def try_reduction(device: str) -> Found:
    """Import PyKeOps and run one tiny reduction in another process."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, device], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Found(False, False, f"did not end within {SECONDS} s")
    facts = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("PROBE ")]
    stages = {fact["stage"] for fact in facts}
    if done.returncode == 0 and "ran" in stages:
        return Found(True, True, "ran")
    return Found(False, "imported" in stages, _describe_failure(done, facts[0] if facts else {}))


def _describe_failure(done: subprocess.CompletedProcess[str], facts: dict[str, str]) -> str:
    """How it ended, where, with which versions, and its last words."""
    where = "while it compiled its first formula" if facts else "while it was imported"
    versions = ", ".join(f"{name} {facts[name]}" for name in ("pykeops", "torch", "cuda") if facts.get(name))
    if done.returncode < 0:
        end = f"was ended by {signal.Signals(-done.returncode).name} {where}"
        end += ": a failed CUDA or NVRTC call there aborts the process, and CUDA 13 is newer than PyKeOps 2.3"
    else:
        end = f"failed {where}"
    words = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
    said = f"; it said: {words[-1][:300]}" if words else ""
    return f"{end}{f' ({versions})' if versions else ''}{said}"
