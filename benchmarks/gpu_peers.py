"""The GPU backend against FlashSinkhorn and OTT-JAX on the same problems, one float64 auditor for everyone.

    python benchmarks/gpu_peers.py --workloads w15 w3 --arms default plain flash --seconds 20 --json out.json
    python benchmarks/gpu_peers.py --data DIR --workloads lidar umap pbmc      # real windows from .npz files
    python benchmarks/gpu_peers.py --ahead ...       # let all that will be run compile first, side by side
    python benchmarks/gpu_peers.py --json out.json --workloads --markdown out.md    # a table of what stands in the file

Arms are warm and interleaved, in orders in which each follows every other as often; times are medians of repeats. Each
arm has a process of its own, as its users have, so that no library's threads, heap or settings are another's; one runs
while the others wait. A process that has waited finds its caches cold and its core asleep, which costs some
milliseconds: an arm of less than half a second runs untimed for two tenths of one right before it is timed. A peer is
given the problems of a window one after another until its seconds are over, and its time is then scaled by their number
(marked ~): a poor guess where depths differ. A peer whose audited residual misses tol by more than 1 % is marked
failed. FlashSinkhorn alternates, with a two-sided check every four cycles, as in the paper and in the campaigns
(`flash-8`: every eight); OTT-JAX stops by its own error every ten iterations, in the highest matmul precision.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
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
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn_bench import gate, peers
from drainsinkhorn_bench.meters import energy_reader, heap_at_rest
from drainsinkhorn_bench.runner import orders

# What JAX compiles is kept, as Triton keeps its own, so that processes that warm up serve the one that measures.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "drainsinkhorn-jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

TOL = 1e-3
MOST = 20_000
LONG, SHORT, AWAKE = 2.0, 0.5, 0.2
"""Seconds from which an arm runs only once, up to which it runs untimed right before it is timed, and how long then."""
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
        ended = solution.outcomes
        rows = zip(ended.tickets, ended.f, ended.g, strict=True)
        return {ticket: lambda pair=(f, g): [pair] for ticket, f, g in rows}, solution.ledger

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
OURS = ("default", "plain", "momentum")
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
) -> tuple[dict[str, Any], Found, Any]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held, joules = torch.cuda.memory_allocated(), meter()
    begun = time.perf_counter()
    found, ledger = run(problems, seconds)
    torch.cuda.synchronize()
    scale = len(problems) / len(found)
    spent, after = (time.perf_counter() - begun) * scale, meter()
    used = None if joules is None or after is None else (after - joules) * scale
    peak = torch.cuda.max_memory_allocated() - held
    return {"seconds": spent, "peak_bytes": peak, "joules": used}, found, ledger


def told(arm: str, problems: list[ds.Problem[Any]], found: Found, ledger: Any) -> dict[str, Any]:
    """What an arm's last lap found, and what a float64 auditor says of it."""
    some = sorted(found)[:: max(1, len(found) // 64)]
    worst = max(gate.residual(problems[i], Potentials(*found[i]()[0])) for i in some)
    row: dict[str, Any] = {
        "ran": len(found),
        "of": len(problems),
        "worst_residual": worst,
        "failed": not worst <= (TOL if arm.startswith(OURS) else 1.01 * TOL),
    }
    if ledger is not None:
        depths = sorted(ledger.depths.values())
        row |= {"slots": ledger.slots, "legs": ledger.legs, "padding": ledger.padding}
        row |= {"median_depth": depths[len(depths) // 2]}
        row |= {"rescued": len(ledger.rescue.depths) if ledger.rescue else 0}
        row |= {"parts": {verb: round(value, 4) for verb, value in ledger.seconds.items()}}
    return row


def serve(arm: str, workload: str, data: Path | None) -> None:
    """One arm on one workload: laps as they are asked for on standard input, answers as lines of JSON."""
    # What libraries print goes where errors go.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        problems = REAL[workload](data) if data is not None and workload in REAL else WORKLOADS[workload]()
        meter = energy_reader() or (lambda: None)
        run = ARMS[arm]()
        run(problems if arm.startswith((*OURS, "ott-vmap")) else problems[:1], 0.0)
        torch.cuda.synchronize()
        say(problems=len(problems))
        found: Found = {}
        ledger, last = None, math.inf
        with heap_at_rest():
            for line in sys.stdin:
                if line.strip() == "told":
                    say(**told(arm, problems, found, ledger))
                    continue
                seconds = float(line)
                begun = time.perf_counter()
                while last < SHORT and time.perf_counter() - begun < AWAKE:
                    run(problems, seconds)
                lap, found, ledger = timed(run, problems, seconds, meter)
                last = lap["seconds"]
                say(**lap)
    except Exception as error:  # noqa: BLE001  an arm that cannot run is said so
        say(note=f"{type(error).__name__}: {str(error)[:160]}")


class Worker:
    """The process of an arm."""

    def __init__(self, arm: str, workload: str, data: Path | None) -> None:
        more = [] if data is None else ["--data", str(data)]
        command = [sys.executable, __file__, "--serve", arm, "--workloads", workload, *more]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"note": f"ended with exit code {self._process.wait()}"}

    def ask(self, what: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(what, file=self._process.stdin, flush=True)
        return self.answer()

    def end(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def started(name: str, arms: list[str], data: Path | None) -> dict[str, Worker]:
    if name in REAL and data is None:
        raise SystemExit(f"workload {name} needs --data DIR, a folder with the .npz files of real windows")
    return {arm: Worker(arm, name, data) for arm in arms}


def measure(
    name: str, workers: dict[str, Worker], ready: dict[str, dict[str, Any]], seconds: float, repeats: int
) -> dict[str, Any]:
    rows = {arm: answer for arm, answer in ready.items() if "note" in answer}
    laps: dict[str, list[Any]] = {arm: [] for arm in workers if arm not in rows}
    arms = list(laps)
    for order in orders(len(arms), repeats):
        for arm in (arms[place] for place in order):
            if arm in rows or (laps[arm] and laps[arm][0]["seconds"] >= LONG):
                continue
            lap = workers[arm].ask(seconds)
            if "note" in lap:
                rows[arm] = lap
            else:
                laps[arm].append(lap)
    for arm in (arm for arm in arms if arm not in rows):
        times = [lap["seconds"] for lap in laps[arm]]
        rows[arm] = {"seconds": statistics.median(times), "spread": max(times) / min(times), "laps": times}
        rows[arm] |= {key: laps[arm][-1][key] for key in ("peak_bytes", "joules")} | workers[arm].ask("told")
    problems = max((answer.get("problems", 0) for answer in ready.values()), default=0)
    for worker in workers.values():
        worker.end()
    return {"workload": name, "problems": problems, "tol": TOL, "arms": {arm: rows[arm] for arm in workers}}


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
    parser.add_argument("--repeats", type=int, default=3, help="laps")
    parser.add_argument(
        "--ahead", action="store_true", help="start the processes of all windows first: they compile side by side"
    )
    parser.add_argument("--json", type=Path, default=None, help="resumes: workloads that stand in it are not run again")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error(f"--repeats is the number of laps, at least 1, got {args.repeats}")
    if args.serve:
        return serve(args.serve, args.workloads[0], args.data)
    reports = json.loads(args.json.read_text()) if args.json is not None and args.json.exists() else []
    done = {report["workload"] for report in reports}
    wanted = [name for name in args.workloads if name not in done]
    for names in [wanted] if args.ahead else [[name] for name in wanted]:
        begun = time.perf_counter()
        workers = {name: started(name, args.arms, args.data) for name in names}
        ready = {name: {arm: worker.answer() for arm, worker in each.items()} for name, each in workers.items()}
        print(f"{', '.join(names)}: ready after {time.perf_counter() - begun:.0f} s", flush=True)
        for name in names:
            report = measure(name, workers[name], ready[name], args.seconds, args.repeats)
            show(report)
            here = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
            reports.append(report | {"command": " ".join(sys.argv), **here})
            if args.json is not None:
                args.json.write_text(json.dumps(reports, indent=1))
    if args.markdown is not None:
        args.markdown.write_text(markdown(reports))
    return None


if __name__ == "__main__":
    main()
