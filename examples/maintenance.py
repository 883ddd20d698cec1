"""Predictive maintenance: does drift from healthy windows separate the reported failures of a compressor?

    python examples/maintenance.py                 # a generated log with three failures
    python examples/maintenance.py --data DIR      # DIR/metropt3.npz: raw rows and window statistics of MetroPT-3

The score of a window is its mean Sinkhorn divergence from a few healthy windows, all pairs lanes of one batch; an alarm
is a score above a quantile of healthy windows. The AUC says how well scores separate windows inside reported failures
from healthy ones that the detector has not seen.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from drainsinkhorn.sensors import Drift, windows


def auc(healthy: Any, failed: Any) -> float:
    """The chance that a failed window scores higher than a healthy one; ties count half."""
    healthy, failed = np.sort(healthy), np.asarray(failed)
    below = np.searchsorted(healthy, failed, side="left") + np.searchsorted(healthy, failed, side="right")
    return float(below.mean() / (2 * len(healthy)))


def generated(seed: int = 0) -> dict[str, Any]:
    """Seven sensors of a compressor that cycles; a failure is an air leak: longer load, higher current, warmer oil."""
    rng = np.random.default_rng(seed)

    def log(rows: int, leak: float) -> Any:
        phase = np.cumsum(rng.normal(0.12, 0.01, size=rows))
        load = (np.sin(phase) > 0.3 - leak).astype(float)
        pressure = 8.5 + 0.6 * np.sin(phase) - leak * 0.8
        oil = 55 + 8 * leak + np.convolve(rng.normal(size=rows + 49), np.ones(50) / 10, "valid")
        columns = [load * 9, pressure, 8.6 * (1 - load), 0.02 + leak * load, pressure + 0.02, oil, 0.05 + 5.5 * load]
        return np.stack(columns, axis=1) + rng.normal(scale=0.03, size=(rows, 7))

    failures = [log(1200, leak) for leak in (0.4, 0.25, 0.6)]
    return {"healthy": log(6000, 0.0), "failures": failures, "name": "generated"}


def metropt(folder: Path) -> dict[str, Any]:
    with np.load(folder / "metropt3.npz") as stored:
        x, part = stored["failure_x"], stored["failure_id"]
        failures = [x[part == k] for k in (1, 2, 3, 4)]
        healthy = stored["normal_x"][:, : x.shape[1]]
        statistics = {name: stored[f"window_{name}"] for name in ("x", "is_anomaly", "split")}
    return {"healthy": healthy, "failures": failures, "statistics": statistics, "name": "MetroPT-3"}


def raw(data: dict[str, Any], length: int, step: int, share: float = 0.6) -> dict[str, Any]:
    """Windows of raw rows: the first `share` of the healthy log teaches, the rest is held out."""
    cut = int(share * len(data["healthy"]))
    taught, held = (windows(part, length, step) for part in (data["healthy"][:cut], data["healthy"][cut:]))
    begun = time.perf_counter()
    detector = Drift.fit(taught, references=4)
    healthy = detector.score(held)
    failures = [detector.score(windows(log, length, length)) for log in data["failures"]]
    seconds = time.perf_counter() - begun
    scores = np.concatenate([found.values for found in failures])
    return {
        "what": f"raw rows, windows of {length}", "healthy": healthy.values, "failures": [f.values for f in failures],
        "threshold": detector.threshold, "auc": auc(healthy.values, scores), "ot_s": seconds,
        "found": float((scores > detector.threshold).mean()), "false": float(healthy.alarms.mean()),
        "problems": sum(len(f.divergences.solution) for f in (healthy, *failures)),
    }  # fmt: skip


def statistics(data: dict[str, Any], bag: int, seed: int = 0) -> dict[str, Any]:
    """Bags of window statistics: the source keeps no order in time, so windows of one label are bagged at random."""
    x, bad, split = (data["statistics"][name] for name in ("x", "is_anomaly", "split"))
    rng = np.random.default_rng(seed)

    def bags(chosen: Any) -> Any:
        chosen = rng.permutation(np.flatnonzero(chosen))
        return x[chosen[: len(chosen) // bag * bag]].reshape(-1, bag, x.shape[1])

    taught, held, failed = bags(~bad & (split == 0))[:200], bags(~bad & (split == 1)), bags(bad)
    begun = time.perf_counter()
    detector = Drift.fit(taught, references=8)
    healthy, failing = detector.score(held), detector.score(failed)
    return {
        "what": f"bags of {bag} window statistics", "healthy": healthy.values, "failures": [failing.values],
        "threshold": detector.threshold, "auc": auc(healthy.values, failing.values),
        "ot_s": time.perf_counter() - begun, "found": float(failing.alarms.mean()),
        "false": float(healthy.alarms.mean()),
        "problems": sum(len(f.divergences.solution) for f in (healthy, failing)),
    }  # fmt: skip


def draw(found: list[dict[str, Any]], name: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(found), 1, figsize=(11, 3.2 * len(found)), layout="constrained", squeeze=False)
    for axis, part in zip(axes[:, 0], found, strict=True):
        first = 0
        for k, scores in enumerate([part["healthy"], *part["failures"]]):
            places = np.arange(first, first + len(scores))
            label = "healthy, held out" if k == 0 else f"failure {k}" if len(part["failures"]) > 1 else "failures"
            axis.scatter(places, scores, s=9, color="C0" if k == 0 else f"C{k}", label=label)
            first += len(scores) + 4
        axis.axhline(part["threshold"], color="0.3", lw=1, ls="--", label="99 % of healthy windows")
        positive = min(scores[scores > 0].min() for scores in [part["healthy"], *part["failures"]])
        axis.set(yscale="log", ylim=(max(positive, 1e-3) / 2, None), xlabel="window", ylabel="divergence from healthy")
        axis.set(
            title=f"{name}, {part['what']}: AUC {part['auc']:.3f}, {part['problems']} problems in {part['ot_s']:.1f} s"
        )
        axis.legend(fontsize=7, ncols=6, loc="lower right")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--length", type=int, default=120, help="rows of a raw window; about 20 minutes in MetroPT-3")
    parser.add_argument("--bag", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("maintenance.png"))
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    begun = time.perf_counter()
    data = generated() if args.data is None else metropt(args.data)
    found = [raw(data, args.length, args.length // 6)]
    if "statistics" in data:
        found += [statistics(data, args.bag), statistics(data, 1)]
    for part in found:
        alarms = f"alarms in {part['found']:.1%} of failed and {part['false']:.1%} of held-out healthy windows"
        work = f"{part['problems']} problems, OT {part['ot_s']:.2f} s"
        print(f"{part['what']}: AUC {part['auc']:.4f}; {alarms}; {work}", flush=True)
    draw(found, data["name"], args.out)
    spent = sum(part["ot_s"] for part in found)
    print(f"OT {spent:.2f} s, all else {time.perf_counter() - begun - spent:.2f} s")
    if args.json is not None:
        args.json.write_text(json.dumps(found, default=lambda array: array.tolist(), indent=1))


if __name__ == "__main__":
    main()
