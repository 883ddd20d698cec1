"""The GPU backend against FlashSinkhorn and OTT-JAX on the same problems, one float64 auditor for everyone.

    python benchmarks/gpu_peers.py --workloads w15 w3 --arms default plain flash --seconds 20 --json out.json
    python benchmarks/gpu_peers.py --data DIR --workloads lidar umap pbmc      # real windows from .npz files
    python benchmarks/gpu_peers.py --warm ...        # first compile all that will be run, in processes side by side
    python benchmarks/gpu_peers.py --json out.json --workloads --markdown out.md    # a table of what stands in the file

Arms are warm and interleaved, in orders in which each follows every other as often; times are medians of repeats. An
arm of less than half a second runs untimed right before it is timed, so that nobody pays for what the arm before left
in the host's caches. A peer is given the problems of a window one after another until its seconds are over, and its
time is then scaled by their number (marked ~): a poor guess where depths differ. A peer whose audited residual misses
tol by more than 1 % is marked failed. FlashSinkhorn alternates, with a two-sided check every four cycles, as in the
paper and in the campaigns (`flash-8`: every eight); OTT-JAX stops by its own error every ten iterations, in the
highest matmul precision.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import drainsinkhorn as ds
from drainsinkhorn.campaign import gate, peers
from drainsinkhorn.campaign.meters import energy_reader, heap_at_rest
from drainsinkhorn.campaign.runner import orders
from drainsinkhorn.core.problem import Potentials

# What JAX compiles is kept, as Triton keeps its own, so that processes that warm up serve the one that measures.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "drainsinkhorn-jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

TOL = 1e-3
MOST = 20_000
LONG, SHORT = 2.0, 0.5
"""Seconds from which an arm runs only once, and up to which it is run once more, untimed, right before it is timed."""
Found = dict[int, Callable[[], list[Any]]]
"""Potentials by problem, converted when asked for."""


def mixtures(n: int, d: int, width: int, eps: float, *, equal: bool = False) -> list[ds.Problem[Any]]:
    """Pairs of eight-cluster mixtures with growing spread; `equal` gives every lane the same one."""
    found = []
    for lane in range(width):
        rng = np.random.default_rng([11, n, d, 0 if equal else lane])
        spread = 0.1 + 0.9 * (0 if equal else lane) / max(1, width - 1)
        x, y = (rng.normal(size=(8, d))[rng.integers(8, size=n)] + spread * rng.normal(size=(n, d)) for _ in range(2))
        x, y = (torch.tensor(points.astype(np.float32), device="cuda") for points in (x, y))
        found.append(ds.Problem(x=x, y=y, eps=eps))
    return found


def windows(pairs: list[tuple[Any, Any]], share: float) -> list[ds.Problem[Any]]:
    """Real clouds, centred and scaled so that the mean cost is 1; eps is a share of it."""
    made = []
    for x, y in pairs:
        x, y = (np.asarray(points, dtype=np.float64) for points in (x, y))
        scale = ((x[::16, None] - y[None, ::16]) ** 2).sum(-1).mean() ** -0.5
        middle = x.mean(0)
        x, y = (torch.tensor(((points - middle) * scale).astype(np.float32), device="cuda") for points in (x, y))
        made.append(ds.Problem(x=x, y=y, eps=share))
    return made


def picked(rng: Any, points: Any, n: int) -> Any:
    return points[rng.choice(len(points), n, replace=False)]


def lidar(data: Path) -> list[ds.Problem[Any]]:
    scans = np.load(data / "kitti_0005_lidar.npz")["xyz"][:, ::2]
    return windows([(scans[i], scans[i + 1]) for i in range(8)], 0.005)


def metropt(data: Path) -> list[ds.Problem[Any]]:
    rows = np.load(data / "metropt3.npz")["failure_x"]
    rows = (rows - rows.mean(0)) / rows.std(0)
    return windows([(rows[:4096], rows[i * 4096 : (i + 1) * 4096]) for i in range(1, 7)], 0.01)


def umap(data: Path) -> list[ds.Problem[Any]]:
    rng, file = np.random.default_rng(0), np.load(data / "packer19.npz")
    at = {when: file["umap"][file["umap_time"] == when] for when in (300, 400, 500)}
    pairs = [(300, 400), (400, 500)] * 4
    return windows([(picked(rng, at[early], 8192), picked(rng, at[late], 8192)) for early, late in pairs], 0.005)


def packer(data: Path) -> list[ds.Problem[Any]]:
    rng, file = np.random.default_rng(0), np.load(data / "packer19.npz")
    early, late = (file["pca"][file["time_point"] == when] for when in ("400_minutes", "500_minutes"))
    return windows([(early, picked(rng, late, 700)) for _ in range(8)], 0.02)


def pbmc(data: Path) -> list[ds.Problem[Any]]:
    rng, file = np.random.default_rng(0), np.load(data / "pbmc_ifnb.npz")
    before, after = (file["pca"][(file["stimulated"] > 0) == side] for side in (False, True))
    return windows([(picked(rng, before, 4096), picked(rng, after, 4096)) for _ in range(8)], 0.02)


def images(data: Path) -> list[ds.Problem[Any]]:
    rng, file = np.random.default_rng(0), np.load(data / "imagenet200_32px_pca500.npz")
    scores = file["scores_q"].astype(np.float32) * float(file["step"])
    scores /= scores.std()
    return windows([(rng.normal(size=(4096, 500)), picked(rng, scores, 4096)) for _ in range(8)], 0.02)


WORKLOADS: dict[str, Callable[[], list[ds.Problem[Any]]]] = {
    "w15": lambda: mixtures(16384, 15, 16, 0.1),
    "w50": lambda: mixtures(16384, 50, 8, 0.1),
    "w3": lambda: mixtures(8192, 3, 8, 0.02),
    "m50": lambda: mixtures(4096, 50, 16, 0.1),
    "s500": lambda: mixtures(1024, 500, 8, 1.0),
    "null": lambda: mixtures(4096, 15, 8, 0.1, equal=True),
    "small": lambda: mixtures(128, 16, 4096, 0.5),
}
REAL: dict[str, Callable[[Path], list[ds.Problem[Any]]]] = {
    "lidar": lidar, "metropt": metropt, "umap": umap, "packer": packer, "pbmc": pbmc, "images": images,
}  # fmt: skip


def ours(**settings: Any) -> Callable[[list[ds.Problem[Any]], float], tuple[Found, Any]]:
    def run(problems: list[ds.Problem[Any]], _: float) -> tuple[Found, Any]:
        solution = ds.solve(problems, tol=TOL, backend="triton", max_depth=MOST, **settings)
        pairs = solution.results.records.potentials
        return {i: lambda pair=pair: [pair] for i, pair in enumerate(pairs)}, solution.ledger

    return run


def flash(*, every: int = 4, tf32: bool = False) -> Callable[[list[ds.Problem[Any]], float], tuple[Found, Any]]:
    """FlashSinkhorn's kernels, alternating, checked on both sides every so many cycles."""
    return serial(peers.Flash(TOL, every, tf32))


def serial(peer: Any) -> Callable[[list[ds.Problem[Any]], float], tuple[Found, Any]]:
    """A peer on one problem after another; its answers are converted when the clock has stopped."""

    def run(problems: list[ds.Problem[Any]], seconds: float) -> tuple[Found, Any]:
        found, begun = Found(), time.perf_counter()
        # Depths grow along a window, so that what a peer has time for is spread over it.
        for i in sorted(range(len(problems)), key=lambda i: (5 * i + 3) % len(problems)):
            found[i] = peer.serial([problems[i]]).potentials
            torch.cuda.synchronize()
            if time.perf_counter() - begun > seconds:
                break
        return found, None

    return run


def ott(*, momentum: bool, vmap: bool = False) -> Callable[[list[ds.Problem[Any]], float], tuple[Found, Any]]:
    peer = peers.Ott(TOL, momentum=momentum)

    def together(problems: list[ds.Problem[Any]], _: float) -> tuple[Found, Any]:
        out = peer.vmap(problems)
        return {i: lambda i=i: [out.potentials()[i]] for i in range(len(problems))}, None

    return together if vmap else serial(peer)


PLAIN = {"accelerate": "none", "init": "zero"}
ARMS: dict[str, Callable[[], Any]] = {
    "default": lambda: ours(),
    "momentum": lambda: ours(init="zero"),
    "plain": lambda: ours(**PLAIN),
    "plain-width-one": lambda: ours(mode="width-one", **PLAIN),
    "plain-static": lambda: ours(mode="static", **PLAIN),
    "plain-mask": lambda: ours(mode="mask", **PLAIN),
    "plain-compact": lambda: ours(mode="compact", **PLAIN),
    "default-width-one": lambda: ours(mode="width-one"),
    "default-stream": lambda: ours(mode="stream"),
    "flash": lambda: flash(),
    "flash-8": lambda: flash(every=8),
    "flash-tf32": lambda: flash(tf32=True),
    "ott": lambda: ott(momentum=False),
    "ott-momentum": lambda: ott(momentum=True),
    "ott-vmap": lambda: ott(momentum=False, vmap=True),
}


def timed(
    run: Any, problems: list[ds.Problem[Any]], seconds: float, meter: Callable[[], float | None]
) -> tuple[float, Found, Any, int, float | None]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held, joules = torch.cuda.memory_allocated(), meter()
    begun = time.perf_counter()
    found, ledger = run(problems, seconds)
    torch.cuda.synchronize()
    scale = len(problems) / len(found)
    spent, after = (time.perf_counter() - begun) * scale, meter()
    used = None if joules is None or after is None else (after - joules) * scale
    return spent, found, ledger, torch.cuda.max_memory_allocated() - held, used


def measure(name: str, arms: list[str], seconds: float, repeats: int, data: Path | None) -> dict[str, Any]:
    if name in REAL:
        if data is None:
            raise SystemExit(f"workload {name} needs --data DIR, a folder with the .npz files of real windows")
        problems = REAL[name](data)
    else:
        problems = WORKLOADS[name]()
    meter = energy_reader() or (lambda: None)
    rows: dict[str, Any] = {}
    runs: dict[str, Any] = {}
    for arm in arms:
        try:
            runs[arm] = ARMS[arm]()
            some = problems[:1] if not arm.startswith(("default", "plain", "momentum", "ott-vmap")) else problems
            runs[arm](some, 0.0)
        except Exception as error:  # noqa: BLE001  an arm that cannot run is said so
            rows[arm] = {"note": f"{type(error).__name__}: {str(error)[:160]}"}
            runs.pop(arm, None)
    laps: dict[str, list[Any]] = {arm: [] for arm in runs if repeats}
    with heap_at_rest():
        for lap, order in enumerate(orders(len(runs), repeats)):
            for arm in (list(runs)[place] for place in order):
                if lap and laps[arm][0][0] >= LONG:
                    continue
                if lap and laps[arm][-1][0] < SHORT:
                    runs[arm](problems, seconds)
                laps[arm].append(timed(runs[arm], problems, seconds, meter))
    for arm, found in laps.items():
        times = [lap[0] for lap in found]
        results, ledger = found[-1][1], found[-1][2]
        some = sorted(results)[:: max(1, len(results) // 64)]
        worst = max(gate.residual(problems[i], Potentials(*results[i]()[0])) for i in some)
        rows[arm] = {
            "seconds": statistics.median(times),
            "spread": max(times) / min(times),
            "laps": times,
            "ran": len(results),
            "of": len(problems),
            "worst_residual": worst,
            "failed": not worst <= (TOL if arm.startswith(("default", "plain", "momentum")) else 1.01 * TOL),
            "peak_bytes": found[-1][3],
            "joules": found[-1][4],
        }
        if ledger is not None:
            depths = sorted(ledger.depths.values())
            rows[arm] |= {"slots": ledger.slots, "legs": ledger.legs, "padding": ledger.padding}
            rows[arm] |= {
                "median_depth": depths[len(depths) // 2],
                "rescued": len(ledger.rescue.depths) if ledger.rescue else 0,
            }
            rows[arm] |= {"parts": {verb: round(value, 4) for verb, value in ledger.seconds.items()}}
    return {"workload": name, "problems": len(problems), "tol": TOL, "arms": rows}


def warm(args: argparse.Namespace) -> None:
    """Every arm of every workload once, each in a process of its own, all at the same time."""
    begun, more = time.perf_counter(), [] if args.data is None else ["--data", str(args.data)]
    alone = [sys.executable, __file__, "--repeats", "0", *more]
    commands = [[*alone, "--workloads", name, "--arms", arm] for name in args.workloads for arm in args.arms]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    failed = sum(process.wait() != 0 for process in running)
    print(f"warm after {time.perf_counter() - begun:.0f} s, {len(running)} processes, {failed} failed", flush=True)


def show(report: dict[str, Any]) -> None:
    print(f"\n{report['workload']}: {report['problems']} problems, tol {report['tol']}")
    for arm, row in report["arms"].items():
        if "note" in row:
            print(f"  {arm:<18} {row['note']}")
            continue
        mark = "~" if row["ran"] < row["of"] else " "
        more = (
            f"slots {row['slots']} padding {row['padding']:.2f} rescued {row['rescued']} {row['parts']}"
            if "slots" in row
            else ""
        )
        failed = "FAILED" if row["failed"] else ""
        more = f"{row['peak_bytes'] / 2**20:.0f} MiB {more}" + (f" {row['joules']:.0f} J" if row["joules"] else "")
        said = f"{mark}{row['seconds']:9.4f} s  x{row['spread']:.2f}  residual {row['worst_residual']:.2e} {failed}"
        print(f"  {arm:<18}{said} {more}", flush=True)


def markdown(reports: list[dict[str, Any]]) -> str:
    """One table: seconds by window and arm, `~` where scaled; in brackets the residual of an arm that missed tol."""
    arms = list(dict.fromkeys(arm for report in reports for arm in report["arms"]))
    lines = ["| window | " + " | ".join(arms) + " |", "| --- |" + " --- |" * len(arms)]
    for report in reports:
        cells = []
        for arm in arms:
            row = report["arms"].get(arm, {})
            mark = "~" if row.get("ran", 0) < row.get("of", 0) else ""
            missed = f" ({row['worst_residual']:.2e})" if row.get("failed") else ""
            cells.append(f"{mark}{row['seconds']:.4f}{missed}" if "seconds" in row else row.get("note", ""))
        lines.append(f"| `{report['workload']}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="*", default=list(WORKLOADS), choices=[*WORKLOADS, *REAL])
    parser.add_argument("--data", type=Path, default=None, help="folder with the .npz files of real windows")
    parser.add_argument("--markdown", type=Path, default=None, help="write a table of all that was measured")
    parser.add_argument(
        "--arms", nargs="*", default=["default", "plain", "flash", "ott", "ott-momentum"], choices=list(ARMS)
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="what a serial peer may take per window")
    parser.add_argument("--repeats", type=int, default=3, help="laps; 0 only warms up")
    parser.add_argument("--warm", action="store_true", help="compile first, in processes side by side")
    parser.add_argument("--json", type=Path, default=None, help="resumes: workloads that stand in it are not run again")
    args = parser.parse_args()
    reports = json.loads(args.json.read_text()) if args.json is not None and args.json.exists() else []
    done = {report["workload"] for report in reports}
    args.workloads = [name for name in args.workloads if name not in done]
    if args.warm:
        warm(args)
    for name in args.workloads:
        report = measure(name, args.arms, args.seconds, args.repeats, args.data)
        show(report)
        reports.append(
            report | {"command": " ".join(sys.argv), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        )
        if args.json is not None:
            args.json.write_text(json.dumps(reports, indent=1))
    if args.markdown is not None:
        args.markdown.write_text(markdown(reports))


if __name__ == "__main__":
    main()
