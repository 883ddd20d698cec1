"""What a machine is, and what a run used of it: a clock that waits for the device, energy, peak memory."""

from __future__ import annotations

import gc
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from drainsinkhorn.model.errors import BackendUnavailable, OptionsError
from drainsinkhorn_bench.plan import Place

DEVICES = ("cpu", "cuda")
MEMORY = "memory_gib"
SHORTEST = 0.5
"""Seconds below which energy is not told: the counter of a GPU moves only some ten times a second."""


def python() -> str:
    """The version of Python."""
    return f"{platform.python_implementation()} {sys.version.split()[0]}"


def place(device: str = "auto") -> Place:
    """Where to run: "cuda" if it can be used, else "cpu"; or what was asked for."""
    if device not in ("auto", *DEVICES):
        raise OptionsError(f"device must be auto, cpu or cuda, got {device!r}")
    cuda = _cuda() if device != "cpu" else None
    if device == "cuda" and cuda is None:
        raise BackendUnavailable("device cuda was asked for, and torch sees none here; use --device cpu")
    if cuda is None:
        return Place("cpu", time.perf_counter)
    # JAX would take three quarters of the device for itself, and nothing would be left for torch.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    def clock() -> float:
        cuda.synchronize()
        return time.perf_counter()

    return Place("cuda", clock)


def _cuda() -> Any:
    """torch.cuda where there is a device, else None."""
    try:
        import torch
    except ImportError:
        return None
    return torch.cuda if torch.cuda.is_available() else None


@contextmanager
def heap_at_rest() -> Iterator[None]:
    """While arms are timed, what others have loaded is not looked through by the garbage collector."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def clock_facts(where: Place) -> dict[str, Any]:
    """Return facts about the clock: its name, implementation and resolution, and how the device is synchronised."""
    info = time.get_clock_info("perf_counter")
    return {
        "name": "time.perf_counter",
        "implementation": info.implementation,
        "resolution": info.resolution,
        "synchronised": "torch.cuda.synchronize" if where.device == "cuda" else None,
    }


def machine(device: str) -> dict[str, Any]:
    """What kind of machine this is; equal on two machines that are built alike."""
    facts: dict[str, Any] = {
        "device": device,
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
    cuda = _cuda() if device == "cuda" else None
    if cuda is not None:
        import torch

        seen = cuda.get_device_properties(cuda.current_device())
        facts |= {
            "gpu": seen.name,
            "gpu_count": cuda.device_count(),
            "gpu_memory_gib": round(seen.total_memory / 2**30, 1),
            "multiprocessors": seen.multi_processor_count,
            "capability": f"{seen.major}.{seen.minor}",
            "cuda": torch.version.cuda,
            **_gpu_query("driver_version", "power.limit", "clocks.max.sm", "clocks.max.memory"),
            "tiles": _tiles(seen.name),
        }
    return facts


def host(device: str) -> dict[str, Any]:
    """Which machine this is: the kind of machine, its name and its device.

    The size of the memory is recorded, but is not part of the machine's hash: a virtual machine may get more of it
    while it runs.
    """
    which: dict[str, Any] = {"name": socket.gethostname(), "kernel": platform.release(), MEMORY: _memory_gib()}
    if device == "cuda":
        which |= _gpu_query("uuid")
    return {**machine(device), **which}


def _processor() -> str:
    """The processor as Linux names it, or what Python knows."""
    try:
        for text in Path("/proc/cpuinfo").read_text().splitlines():
            if text.startswith("model name"):
                return text.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (OSError, ValueError, AttributeError):
        return None


def _gpu_query(*fields: str) -> dict[str, str]:
    """What nvidia-smi says of the device in use; nothing where it cannot be asked."""
    cuda = _cuda()
    if cuda is None:
        return {}
    words = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    words.append(f"--id={cuda.current_device()}")
    try:
        told = subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in told.strip().split("\n")[0].split(",")]
    return dict(zip(fields, values, strict=True)) if len(values) == len(fields) else {}


def _tiles(gpu: str) -> list[Any] | None:
    """Tiles that `drain tune` kept for this GPU, which change the order of sums; None without Triton."""
    try:
        from drainsinkhorn.backends.triton import tiles
    except ImportError:
        return None
    return [[kind, dp, dict(tile)] for (kind, dp), tile in sorted(tiles.tuned(gpu).items())]


class Used(NamedTuple):
    """What a timed run used; None where it cannot be read."""

    joules: float | None
    peak_bytes: int | None


class Meter:
    """Energy and peak memory between `begin` and `end`: of the GPU on CUDA; None on a CPU."""

    def __init__(self, device: str) -> None:
        self._cuda = _cuda() if device == "cuda" else None
        self._energy = energy_reader() if self._cuda is not None else None
        self._joules = self._begun = 0.0
        self._held = 0

    def begin(self) -> None:
        """Start to count."""
        if self._cuda is not None:
            self._cuda.reset_peak_memory_stats()
            self._held = self._cuda.memory_allocated()
        self._begun = time.perf_counter()
        if self._energy is not None:
            self._joules = self._energy()

    def end(self) -> Used:
        """What was used since `begin`."""
        long = time.perf_counter() - self._begun >= SHORTEST
        joules = self._energy() - self._joules if self._energy is not None and long else None
        peak = None if self._cuda is None else self._cuda.max_memory_allocated() - self._held
        return Used(joules, peak)


def energy_reader() -> Callable[[], float] | None:
    """Joules that the device has used so far, by NVML; None where it does not tell."""
    try:
        import pynvml  # type: ignore[import-not-found]

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(_cuda().current_device())

        def read() -> float:
            return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000

        read()
    except Exception:  # noqa: BLE001  no NVML, no energy
        return None
    return read
