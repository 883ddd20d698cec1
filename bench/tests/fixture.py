"""A raw set that covers every figure of the report: nine campaigns with invented numbers, always the same ones.

`python bench/tests/fixture.py FOLDER` writes it and `drain bench report FOLDER` shows it; with the word golden for a
folder the golden tables are written anew. Nothing in it was measured.
Beside plain units it has a void arm, an arm that could not run, seconds that were scaled up, seconds reconstructed
from a consumer's, two hosts, a unit that is not done, an interrupted attempt and a torn line.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from drainsinkhorn.core.ledger import survival
from drainsinkhorn_bench import report
from drainsinkhorn_bench.manifest import digest
from drainsinkhorn_bench.records import MANIFEST, RAW, Record, line, read_all

HOSTS = {
    "aaaa000011112222": {
        "processor": "Invented CPU 9000",
        "cores": 2,
        "memory_gib": 24,
        "name": "one",
        "device": "cpu",
    },
    "bbbb000011112222": {
        "processor": "Invented CPU 9000",
        "cores": 2,
        "memory_gib": 24,
        "name": "two",
        "device": "cpu",
    },
}
FIRST, SECOND = HOSTS
TAUS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)


def rounded(value: float) -> float:
    """Seven digits, so that no last bit of a platform's mathematics reaches a golden file."""
    return float(f"{value:.7g}")


class Book:
    """Collects the manifest and the records of one campaign."""

    def __init__(self, name: str, title: str, *, arms: Mapping[str, str], **options: Any) -> None:
        self.rng = random.Random(f"report {name}")
        self.name, self.title, self.arms = name, title, arms
        self.options, self.inputs = options, dict[str, str]()
        self.units, self.contrasts = list[dict[str, Any]](), list[dict[str, Any]]()
        self.studies, self.records = list[dict[str, Any]](), list[Record]()
        self.torn = ""
        self._attempt = 0

    def unit(
        self,
        name: str,
        depths: Sequence[int],
        speeds: Mapping[str, float],
        *,
        tol: float = 1e-3,
        repeats: int = 3,
        hosts: Sequence[str] = (FIRST,),
        void: Mapping[str, str] | None = None,
        skipped: Mapping[str, str] | None = None,
        consumer: float | None = None,
        training: float | None = None,
        reconstructed: bool = False,
        scaled: Sequence[str] = (),
        done: bool = True,
        tv: Mapping[str, float] | None = None,
        facts: Iterable[tuple[str, Any, str | None]] = (),
        **options: Any,
    ) -> None:
        """A unit: gates, timings in turns, facts. `speeds` are seconds that each arm takes, before noise."""
        named = [*speeds, *(void or {}), *(skipped or {})]
        self.units.append(
            {
                "name": name,
                "tol": tol,
                "options": options,
                "arms": named,
                "repeats": repeats,
                "warmups": 1,
                "theory": 0.0,
            }
            | {"modal": 0}
        )
        width = options.get("width", len(depths))
        for host in hosts:
            write = self._attempted(name, host)
            for arm, why in (skipped or {}).items():
                write(kind="fact", arm=arm, name="skipped", value=why)
            for arm in [*speeds, *(void or {})]:
                self._gate(write, arm, depths, tol, (void or {}).get(arm))
            for arm in speeds:
                if slots := self._slots(arm, depths, width):
                    value = {"predicted": slots, "counted": slots, "equal": True}
                    write(kind="fact", arm=arm, name="slot_identity", value=value)
            for arm, value in (tv or {}).items():
                write(kind="fact", arm=arm, name="tv", value=value)
            for repeat in range(repeats):
                order = list(speeds)
                self.rng.shuffle(order)
                for position, arm in enumerate(order):
                    e1 = speeds[arm] * (1 + 0.02 * self.rng.random())
                    e2 = None if consumer is None else e1 + consumer
                    e3 = None if training is None else e1 + training
                    seconds = {"e1": rounded(e1), "e2": e2 and rounded(e2), "e3": e3 and rounded(e3)}
                    write(
                        kind="timing",
                        arm=arm,
                        repeat=repeat,
                        position=position,
                        seconds=seconds,
                        reconstructed=reconstructed,
                        extrapolated=arm in scaled,
                        note="some of the problems" if arm in scaled else "",
                        **self._account(arm, depths, width, e1),
                    )
            for fact, value, arm in facts:
                write(kind="fact", arm=arm, name=fact, value=value)
            if done:
                write(kind="done", arm=None, seconds=1.0)

    def study(self, name: str, found: Iterable[tuple[str, Any]]) -> None:
        """A study: facts alone."""
        self.studies.append({"name": name, "options": {}})
        write = self._attempted(None, FIRST, name)
        for fact, value in found:
            write(kind="fact", arm=None, name=fact, value=value)
        write(kind="done", arm=None, seconds=1.0)

    def contrast(
        self,
        name: str,
        numerator: str,
        denominator: str,
        endpoint: str = "e1",
        paper: tuple[float, str] | None = None,
        units: Sequence[str] | None = None,
    ) -> None:
        """A contrast of the manifest."""
        number = None if paper is None else {"value": paper[0], "source": paper[1]}
        self.contrasts.append(
            {"name": name, "numerator": numerator, "denominator": denominator, "endpoint": endpoint}
            | {"paper": number, "units": units}
        )

    def _attempted(self, unit: str | None, host: str, study: str | None = None) -> Any:
        self._attempt += 1
        named = {"study": study} if study else {}
        common = {"unit": unit, "host": host, "campaign": self.name, "attempt": f"{self._attempt:012x}", **named}

        def write(**values: Any) -> None:
            self.records.append({**common, **values})

        return write

    def _gate(self, write: Any, arm: str, depths: Sequence[int], tol: float, why: str | None) -> None:
        share = 1.7 if why else 0.8 + 0.19 * self.rng.random()
        known = None if arm == "official" else list(depths)
        write(
            kind="gate",
            arm=arm,
            passed=why is None,
            tol=tol,
            residual=rounded(share * tol),
            problems=len(depths),
            audited=len(depths),
            depths=known,
            arithmetic="" if arm == "official" else "float32 cached",
            fingerprint="f" * 64,
            note=why or "",
        )

    def _slots(self, arm: str, depths: Sequence[int], width: int) -> int | None:
        if arm == "official":
            return None
        windows = [depths[first : first + width] for first in range(0, len(depths), width)]
        whole = arm in ("static", "mask", "free-mask") or arm.endswith(("verify", "screen"))
        return sum(len(w) * max(w) if whole else sum(w) for w in windows)

    def _account(self, arm: str, depths: Sequence[int], width: int, seconds: float) -> Record:
        slots = self._slots(arm, depths, width)
        if slots is None:
            return {
                "slots": None,
                "active_slots": None,
                "padding": None,
                "widths": None,
                "joules": None,
                "peak_bytes": None,
            }
        trace, at = list[list[int]](), 0
        for first in range(0, len(depths), width):
            window = depths[first : first + width]
            alive = survival(window) if slots == sum(depths) else [len(window)] * max(window)
            alive = [1] * sum(window) if arm in ("width-one", "sequential") else alive
            for cycle, count in enumerate(alive):
                if not trace or trace[-1][1] != count:
                    trace.append([at + cycle, count])
            at += len(alive)
        static = self._slots("static", depths, width) or 0
        return {
            "slots": slots,
            # A static window runs every lane to the common end.
            "active_slots": slots if arm == "static" else sum(depths),
            "padding": rounded(static / sum(depths) - 1),
            "widths": [*trace, [at, 0]],
            "joules": rounded(60 * seconds),
            "peak_bytes": 2**20 * (107 if arm == "compact" else 81),
        }

    def write(self, folder: Path) -> None:
        """Write the manifest and the raw file."""
        body = {
            "campaign": self.name,
            "title": self.title,
            "scale": "small",
            "source": {"commit": "0123456789abcdef" * 2, "dirty": False, "tree_hash": "fedcba9876543210" * 4},
            "inputs": self.inputs,
            "options": {"data": "invented", **self.options},
            "arms": [
                {"name": name, "label": label, "options": {"mode": name, "audit": {"every": 4}}}
                | {"slack": 1.01 if name == "official" else 1.0}
                for name, label in self.arms.items()
            ],
            "units": self.units,
            "contrasts": self.contrasts,
            "studies": self.studies,
            "clock": {"name": "invented"},
            "versions": {"python": "CPython 3.11.0", "drainsinkhorn": "0.0", "numpy": "2.0"},
            "environment": {},
            "machine": {key: value for key, value in HOSTS[FIRST].items() if key != "name"},
            "seed": 0,
        }
        place = folder / self.name
        place.mkdir(parents=True, exist_ok=True)
        (place / MANIFEST).write_text(json.dumps({**body, "hash": digest(body)}, indent=1, sort_keys=True) + "\n")
        used = sorted({record["host"] for record in self.records})
        hosts = [
            {"kind": "host", "unit": None, "arm": None, "attempt": None, "facts": HOSTS[host], "host": host}
            | {"campaign": self.name}
            for host in used
        ]
        (place / RAW).write_text("".join(map(line, [*hosts, *self.records])) + self.torn)


def depths(rng: random.Random, count: int, low: int, high: int) -> list[int]:
    """Depths on a grid of four, most of them small."""
    return [4 * round((low + (high - low) * rng.random() ** 2) / 4) for _ in range(count)]


def theory(rng: random.Random, arms: Mapping[str, float]) -> list[tuple[str, Any, str | None]]:
    """What the harness writes beside a unit."""
    widths = [1, 2, 4, 8, 16]
    seconds = [rounded(1e-4 * (0.4 + 0.6 * width**0.9)) for width in widths]
    found: list[tuple[str, Any, str | None]] = [
        ("curve", {"backend": "cpu", "widths": widths, "seconds": seconds, "lockstep": seconds}, "compact"),
        ("break_even", [{"width": w, "cycles": 4, "shrink": None if w == 2 else 1} for w in widths[1:]], "compact"),
    ]
    for arm, measured in arms.items():
        off = 1 + 0.16 * (rng.random() - 0.5)
        value = {"predicted": rounded(measured * off), "measured": rounded(measured), "median": rounded(measured)}
        found.append(("predicted_time", value, arm))
    rows = list[dict[str, Any]]()
    for problem in range(4):
        for start, tol in (("cold", 1e-3), ("near", 1e-5)):
            depth = rng.randrange(8, 200)
            full = depth if start == "near" else round(depth * (1 + 0.2 * (rng.random() - 0.5)))
            rows.append(
                {"problem": problem, "start": start, "tol": tol, "depth": depth, "full": full, "lambda2": depth * 3}
            )
    rows.append({"problem": 4, "skipped": "900 x 900 points"})
    return [*found, ("modal", rows, None)]


def metropt3() -> Book:
    arms = {"official": "OTT-JAX serial (CPU peer)", "static": "static", "compact": "compact"}
    arms |= {f"free-{mode}": f"{mode}, free screen, first passage" for mode in ("mask", "compact")}
    book = Book(
        "metropt3",
        "MetroPT-3: predictive maintenance (C66)",
        arms=arms,
        differs=["the sensor log is invented", "the official arm is OTT-JAX serial, a CPU peer, not FlashSinkhorn"],
    )
    for plan in range(3):
        found = depths(book.rng, 16, 40, 360)
        needed = 0.9 * sum(found) / (16 * max(found))
        speeds = {"official": 2.4, "static": 0.9, "compact": needed + 0.03}
        speeds |= {"free-mask": 0.8, "free-compact": 0.9 * needed}
        more = theory(book.rng, speeds) if plan == 0 else []
        book.unit(
            f"plan {plan}", found, speeds, consumer=0.05, reconstructed=True, scaled=["official"],
            hosts=(FIRST, SECOND), facts=more, n=384, width=16, eps=0.1,
        )  # fmt: skip
    book.contrast("official / compact", "compact", "official", "e1", (4.110, "tab:ot-cross-backend"))
    book.contrast("static / compact", "compact", "static", "e1", (1.754, "sec:experiments"))
    book.contrast("official / compact, with consumer", "compact", "official", "e2", (4.074, "fig:endpoint-validation"))
    book.torn = '{"kind":"timing","unit":"plan 2","ar'
    return book


def packer19() -> Book:
    arms = {
        "official": "OTT-JAX serial (CPU peer)", "width-one": "width one", "static": "static", "mask": "mask",
        "compact": "compact",
    }  # fmt: skip
    book = Book("packer19", "Packer19: five tolerances (EXP-P19)", arms=arms, differs=["1,805 cells, not 16,384"])
    book.inputs = {"packer19.npz": "750ad374e9c716ce" * 4}
    book.options["data"] = "Packer19, 1,805 cells in PCA-50 (subset)"
    for place, tol in enumerate(TAUS):
        low = 120 - 24 * place
        found = depths(book.rng, 8, low, 3 * low) if tol < 1e-2 else [8] * 8
        static = 0.001 * 8 * max(found)
        speeds = {
            "official": 1.6 * static, "width-one": 1.4 * static, "static": static, "mask": 1.02 * static,
            "compact": static * sum(found) / (8 * max(found)) + 0.0002,
        }  # fmt: skip
        shifts = {"official": 1.1, "width-one": 1.0, "static": 0.7, "mask": 1.0, "compact": 1.0}
        tv = {arm: rounded(0.45 * tol * shift) for arm, shift in shifts.items()}
        void = {"official": "problem 3 has residual 1.70e-4, above tol 1.00e-4"} if tol == 1e-4 else {}
        kept = {arm: seconds for arm, seconds in speeds.items() if arm not in void}
        tv = {arm: value for arm, value in tv.items() if arm not in void}
        more = theory(book.rng, {"mask": speeds["mask"], "compact": speeds["compact"]}) if tol == 1e-3 else []
        name = f"tol {tol:.0e}".replace("e-0", "e-")
        book.unit(name, found, kept, tol=tol, void=void, tv=tv, facts=more, n=160, width=8, eps=0.1)
    table = {1e-4: (1.272, 1.270, 1.558), 3e-4: (1.266, 1.262, 1.638), 1e-3: (1.263, 1.258, 1.571)}
    table |= {3e-3: (1.258, 1.250, 1.480), 1e-2: (1.280, 1.267, 0.9995)}
    for tol, (one, official, mask) in table.items():
        name = f"tol {tol:.0e}".replace("e-0", "e-")
        for top, bottom, value in (
            ("width-one", "static", one),
            ("official", "compact", official),
            ("mask", "compact", mask),
        ):
            book.contrast(f"{top} / {bottom}, {name}", bottom, top, "e1", (value, "tab:packer-pareto"), [name])
    rows = [
        ("native_threshold", {"threshold": t, "depth": 10 * k, "residual": rounded(t * 0.1), "tv": rounded(t * 0.09),
                              "seconds": rounded(0.3 * k), "capped": int(k > 5), "by": "its rule on plain cycles"})
        for k, t in enumerate((1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6), 1)
    ]  # fmt: skip
    book.study("native thresholds", rows)
    return book


def imagenet() -> Book:
    arms = {"official": "OTT-JAX serial", "width-one": "width one", "static": "static", "compact": "compact"}
    book = Book("imagenet", "ImageNet-32: couplings for flow matching (C63, C35)", arms=arms)
    for seed in range(3):
        found = depths(book.rng, 8, 20, 60)
        speeds = {"official": 4.0, "width-one": 3.4, "static": 1.1, "compact": 1.02}
        book.unit(f"seed {seed}", found, speeds, training=2.0, n=128, width=8, eps=0.03)
    for width in (1, 2, 4, 8, 16):
        for window in range(6):
            found = depths(book.rng, width, 20, 120)
            static = 0.01 * width**0.8 * max(found)
            compact = 0.01 * sum(survivor**0.8 for survivor in survival(found)) * 1.01
            book.unit(
                f"W {width}, window {window}",
                found,
                {"static": static, "compact": compact},
                n=256,
                width=width,
                eps=0.1,
            )
    seeds = [f"seed {seed}" for seed in range(3)]
    book.contrast("official / compact", "compact", "official", "e1", (3.798, "tab:ot-cross-backend"), seeds)
    book.contrast("official / compact, trained", "compact", "official", "e3", (2.786, "fig:endpoint-validation"), seeds)
    book.contrast("width-one / static, trained", "static", "width-one", "e3", (2.34729, "sec:experiments"), seeds)
    book.contrast("static / compact, trained", "compact", "static", "e3", (1.03556, "sec:experiments"), seeds)
    for width, value in {1: 0.992, 2: 1.073, 4: 1.229, 8: 1.369, 16: 1.621}.items():
        units = [f"W {width}, window {window}" for window in range(6)]
        name = f"static / compact, W = {width}"
        book.contrast(name, "compact", "static", "e1", (value, "tab:width-regime"), units)
    rows = [
        {"nfe": nfe, "metric": metric, "public": 1.5, "complete": rounded(1.5 * ratio), "ratio": ratio, "margin": most}
        | {"passed": ratio <= most}
        for nfe in (4, 8, 16)
        for metric, ratio, most in (("curvature", 0.998, 1.02), ("loss", 1.0002, 1.01), ("frechet", 0.97, 1.10))
    ]
    book.study("quality", [("gates_nine", {"rows": rows})])
    return book


def lidar() -> Book:
    book = Book("lidar", "LiDAR: consecutive scans", arms={"sequential": "one by one, warm", "compact": "compact"})
    for clip in range(3):
        found = depths(book.rng, 8, 60, 500)
        book.unit(f"clip {clip}", found, {"sequential": 2.0 + clip, "compact": 0.9}, n=512, width=8, eps=0.02)
    book.contrast("sequential / compact", "compact", "sequential", "e1", (3.174, "tab:ot-cross-backend"))
    book.unit("clip 3", [4] * 8, {"compact": 0.5}, done=False, n=512, width=8, eps=0.02)
    return book


def transfer() -> Book:
    arms = {
        "ott-vmap": "OTT-JAX vmap", "ott-static": "OTT-JAX static", "ott-active": "OTT-JAX compact",
        "keops-sequential": "PyKeOps one by one", "keops-active": "PyKeOps compact",
    }  # fmt: skip
    book = Book("transfer", "Transfer: the drain over other libraries", arms=arms)
    found = depths(book.rng, 16, 40, 200)
    speeds = {"ott-vmap": 2.2, "ott-static": 1.4, "ott-active": 0.9}
    why = {"keops-sequential": "pykeops needs a compiler", "keops-active": "pykeops needs a compiler"}
    book.unit("images", found, speeds, repeats=6, skipped=why, n=256, width=16, eps=0.1)
    book.contrast("vmap / compact", "ott-active", "ott-vmap", "e1", (2.600, "tab:ot-cross-backend"))
    book.contrast("static / compact", "ott-active", "ott-static", "e1", (1.545, "sec:experiments"))
    book.contrast(
        "sequential / compact (PyKeOps)", "keops-active", "keops-sequential", "e1", (1.415, "tab:ot-cross-backend")
    )
    return book


def grouping() -> Book:
    book = Book(
        "grouping", "Grouping: one set of problems, five layouts (M3)", arms={"static": "static", "compact": "compact"}
    )
    whole = sorted(depths(book.rng, 32, 40, 160))
    found = list[tuple[str, Any]]()
    ratios = {"homogeneous": 1.105, "heterogeneous": 1.217, "random 1": 1.258, "random 2": 1.235, "random 3": 1.271}
    for name, ratio in ratios.items():
        order = whole[:]
        if name == "heterogeneous":
            order = [whole[k] for first in range(4) for k in range(first, 32, 4)]
        elif name != "homogeneous":
            random.Random(name).shuffle(order)
        windows = [order[first : first + 8] for first in range(0, 32, 8)]
        pad = rounded(sum(8 * max(window) for window in windows) / sum(order) - 1)
        compact = 0.2
        speeds = {"static": compact * (1 + 0.95 * pad), "compact": compact}
        book.unit(name, order, speeds, repeats=5, n=384, problems=32, width=8, eps=0.1, layout=name)
        book.contrast(f"static / compact, {name}", "compact", "static", "e1", (ratio, "tab:m3-grouping"), [name])
        value = {"layout": name, "h_d": rounded(pad * 0.9), "padding": pad, "active_slots": rounded(1 / (1 + pad))}
        found.append(("layout", value))
    book.study("layouts", found)
    return book


def attribution() -> Book:
    steps = (
        ("serial-verify", "static, verified lane by lane", 1.0, None),
        ("batched-verify", "static, verified together", 1.13, ("batched audit", 1.133)),
        ("row-screen", "static, row screen", 1.10, ("one-sided screen", 1.105)),
        ("mask", "mask, row screen", 1.0, ("logical freeze", 1.000)),
        ("compact", "compact, row screen", 1.54, ("physical compaction", 1.540)),
        ("free-screen", "compact, free screen", 1.09, ("free screen", None)),
        ("first-passage", "compact, leaves at first passage", 1.05, ("first passage", None)),
        ("refill", "stream: vacancies refilled", 0.97, ("refill", None)),
        ("cached", "stream, scores cached", 2.4, ("cached scores", None)),
        ("momentum", "stream, cached, momentum", 6.5, ("momentum", None)),
        ("start", "stream, cached, momentum, Gaussian start", 1.25, ("Gaussian start", None)),
    )
    book = Book("attribution", "Attribution: one variable at a time (C80, C80-LM)", arms={s[0]: s[1] for s in steps})
    speeds, at = dict[str, float](), 2.0
    for name, _, ratio, _ in steps:
        at /= ratio
        speeds[name] = at
    for seed in range(3):
        book.unit(f"seed {seed}", depths(book.rng, 24, 40, 200), speeds, repeats=5, n=160, width=8, eps=0.1)
    for (before, *_), (name, _, _, row) in itertools.pairwise(steps):
        assert row is not None
        book.contrast(row[0], name, before, "e1", None if row[1] is None else (row[1], "tab:c80-attribution"))
    book.contrast("all together", "start", "serial-verify")
    book.study(
        "roofline",
        [
            (
                "roofline",
                {"kernel": "leg, n 16384, d 15, split", "seconds": 101e-6, "floor": 64e-6, "bound": "exponentials"},
            ),
            (
                "roofline",
                {"kernel": "leg, n 16384, d 50, split", "seconds": 209e-6, "floor": 64e-6, "bound": "tensor cores"},
            ),
            (
                "roofline",
                {"kernel": "leg, n 8192, d 3, direct", "seconds": 33e-6, "floor": 16e-6, "bound": "exponentials"},
            ),
        ],
    )
    return book


def precision() -> Book:
    book = Book("precision", "Precision: near-threshold decisions and attacks (C10)", arms={})
    cases = list[tuple[str, Any]]()
    for case in range(104):
        true = book.rng.random() < 0.5
        wrong = {"fp32": case in (7, 40, 77), "tf32": case % 9 == 4, "split": case == 40, "guarded": False}
        value = {"case": f"case {case}", "float64": true, **{key: true != flip for key, flip in wrong.items()}}
        value |= {
            "delta": rounded((1 if true else -1) * 10 ** -(1 + case % 6)),
            "residual": 1e-3,
            "escalated": case < 30,
        }
        cases.append(("decision", value | {"screen_gap": rounded(1e-8 * (1 + book.rng.random()))}))
    book.study("near the threshold", cases)
    kinds = {
        "NaN in a potential": "reported", "inf in a potential": "reported", "corrupted screen value": "verify",
        "wrong lane order at repack": "identity", "premature pass": "recheck", "stale verify": "recheck",
        "NaN in a score": "reported", "lost worker": "requeued",
    }  # fmt: skip
    how = "reported as failed; the others agree"
    tried = [
        ("attack", {"attack": kind, "workers": workers, "stopped_by": guard, "caught": True, "how": how, "let_out": 0})
        for kind, guard in kinds.items()
        for workers in (1, 2)
    ]
    book.study("attacks", tried)
    book.study(
        "shadow replay",
        [("shadow", {"windows": "cells", "events": 2210, "missed_ready": 0, "largest_row_gap": 2.4e-8})],
    )
    return book


def scaleout() -> Book:
    book = Book("scaleout", "Scale-out: whole windows on independent workers (C67)", arms={})
    found = list[tuple[str, Any]]()
    for route, loss in (("route A", 0.02), ("route B", 0.05)):
        for workers in (1, 2, 4):
            share = 1 - loss * (workers - 1)
            seconds = rounded(1.5 / share)
            found.append(
                ("workers", {"workers": workers, "seconds": seconds, "efficiency": rounded(share), "route": route})
            )
    book.study("workers", found)
    return book


BOOKS = (metropt3, packer19, imagenet, lidar, transfer, grouping, attribution, precision, scaleout)


def write(folder: Path) -> Path:
    """Write the whole raw set."""
    for book in BOOKS:
        book().write(folder)
    return folder


def renew(golden: Path) -> None:
    """Write the golden tables anew."""
    with tempfile.TemporaryDirectory() as folder:
        made = report.build(read_all(write(Path(folder))))
    for name in ("tables.md", "tables.tex"):
        (golden / name).write_text(made[name], encoding="utf-8", newline="\n")


if __name__ == "__main__":
    if sys.argv[1] == "golden":
        renew(Path(__file__).parent / "golden")
    else:
        write(Path(sys.argv[1]))
