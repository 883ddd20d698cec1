"""What the paper measured, as data: every number with the label of the table, figure or section it stands in.

A contrast of a campaign names its number by key (`Contrast.paper`); the report puts the two side by side and says
what differs. Ratios are times divided by times, above one where the second arm of the contrast is faster, as ours are.
"""

from __future__ import annotations

from dataclasses import dataclass

HOSTS = "two hosts with four A100-SXM4-80GB each"
UNNAMED = "GPUs that it does not name for this campaign"


@dataclass(frozen=True)
class Ratio:
    """A speed ratio of the paper.

    Attributes:
        value: The ratio.
        source: Label of the table, figure or section.
        low: Lower end of its interval.
        high: Upper end.
        spread: What the interval is: "95 % CI" or an observed range.
        wins: Number of pairs in which the second arm of `what` was faster, and of all pairs; None if the paper gives
            neither.
        what: The contrast in the paper's words, "first arm / second arm".
    """

    value: float
    source: str
    what: str
    low: float | None = None
    high: float | None = None
    spread: str = ""
    wins: tuple[int, int] | None = None


@dataclass(frozen=True)
class Setting:
    """How the paper configured a campaign (tab:workload-configs, and the tables' captions).

    Attributes:
        name: The paper's name for it.
        data: The data.
        n: Points of a problem.
        width: Lanes, as one or several.
        eps: Regularisation.
        every: Cycles between audits.
        tol: Two-sided tolerances.
        units: The paired units.
        source: Label.
        machine: The hardware, as far as the paper tells.
    """

    name: str
    data: str
    n: tuple[int, ...]
    width: tuple[int, ...]
    eps: tuple[float, ...]
    every: int | None
    tol: tuple[float, ...]
    units: str
    source: str
    machine: str = UNNAMED


TAUS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)

SETTINGS: dict[str, Setting] = {
    "metropt3": Setting(
        "C66", "MetroPT-3", (16384,), (16,), (0.1,), 4, (1e-3,), "two hosts, three plans", "tab:workload-configs"
    ),
    "packer19": Setting(
        "EXP-P19",
        "Packer19",
        (16384,),
        (8,),
        (0.1,),
        4,
        TAUS,
        "24 host-order-GPU pairs for each tolerance",
        "tab:workload-configs",
        HOSTS,
    ),
    "imagenet": Setting(
        "C63 and C35",
        "ImageNet-32 PCA500",
        (1024, 4096),
        (1, 2, 4, 8, 16),
        (0.03, 0.1),
        None,
        (1e-3,),
        "three seeds (C63), 40 windows for each width (C35)",
        "tab:workload-configs",
    ),
    "lidar": Setting(
        "PyKeOps on A2D2", "A2D2 LiDAR", (8192,), (8,), (), None, (1e-3,), "three clips", "tab:ot-cross-backend"
    ),
    "transfer": Setting(
        "OTT-JAX and PyKeOps",
        "ImageNet-32",
        (4096, 16384),
        (16, 4),
        (),
        None,
        (1e-3,),
        "six repeats (OTT-JAX), three seeds (PyKeOps)",
        "tab:ot-cross-backend",
    ),
    "grouping": Setting("M3", "MetroPT, 32 problems", (), (), (), None, (), "five layouts", "tab:m3-grouping"),
    "attribution": Setting(
        "C80 and C80-LM",
        "Packer19",
        (16384,),
        (8,),
        (0.1,),
        4,
        (1e-3,),
        "24 host-order-GPU pairs",
        "tab:c80-attribution",
        HOSTS,
    ),
    "precision": Setting(
        "C10", "near-threshold cases", (), (), (), None, (), "84 cases and 16 attacks, 1/2/4/8 GPUs", "sec:experiments"
    ),
    "scaleout": Setting("C67", "MetroPT routes", (), (), (), None, (), "two held-out routes", "sec:experiments"),
}

RATIOS: dict[str, Ratio] = {
    # Complete paths against the official one.
    "metropt3/official-compact": Ratio(
        4.110, "tab:ot-cross-backend", "public serial / complete, OT stage", 4.104, 4.114, "95 % CI", (6, 6)
    ),
    "metropt3/static-compact": Ratio(1.754, "sec:experiments", "static / active, OT stage"),
    "metropt3/official-compact-e2": Ratio(4.074, "fig:endpoint-validation", "public serial / complete, with consumer"),
    "imagenet/official-compact": Ratio(
        3.798, "tab:ot-cross-backend", "public serial / complete, solver field", 3.704, 3.983, "range of 3 seeds"
    ),
    "imagenet/official-compact-e3": Ratio(2.786, "fig:endpoint-validation", "public serial / complete, with training"),
    "imagenet/width-one-static-e3": Ratio(2.34729, "sec:experiments", "width-one / static, with training"),
    "imagenet/static-compact-e3": Ratio(
        1.03556, "sec:experiments", "static / active, with training", 1.02982, 1.04311, "range of 3 seeds"
    ),
    # Over other libraries.
    "transfer/ott-vmap-active": Ratio(
        2.600, "tab:ot-cross-backend", "native vmap / phase-active (OTT-JAX)", 2.338, 2.664, "range of 6 repeats"
    ),
    "transfer/ott-static-active": Ratio(1.545, "sec:experiments", "static / phase-active (OTT-JAX)"),
    "transfer/keops-sequential-active": Ratio(
        1.415, "tab:ot-cross-backend", "sequential / active (PyKeOps)", 1.360, 1.448, "range of 3 seeds"
    ),
    "lidar/sequential-active": Ratio(
        3.174, "tab:ot-cross-backend", "sequential carry / active (PyKeOps)", 2.180, 3.944, "range of 3 clips"
    ),
    # One variable at a time.
    "attribution/serial-batched": Ratio(
        1.133, "tab:c80-attribution", "serial / batched verifier", wins=(24, 24)
    ),
    "attribution/two-sided-screen": Ratio(
        1.105, "tab:c80-attribution", "two-sided / row screen", wins=(24, 24)
    ),
    "attribution/static-mask": Ratio(
        1.000, "tab:c80-attribution", "fixed / logical mask", 0.9998, 1.0003, "95 % CI"
    ),
    "attribution/mask-compact": Ratio(
        1.540, "tab:c80-attribution", "logical mask / compaction", 1.5389, 1.5404, "95 % CI", (24, 24)
    ),
}  # fmt: skip

# tab:packer-pareto, one row for each tolerance: width-one / static, official / compact, mask / compact and its 95 %
# interval, largest residual, largest total variation of the consumer's output.
PARETO: dict[float, tuple[float, float, float, float, float, float, float]] = {
    1e-4: (1.272, 1.270, 1.558, 1.557, 1.559, 9.67e-5, 3.61e-5),
    3e-4: (1.266, 1.262, 1.638, 1.636, 1.639, 2.93e-4, 1.20e-4),
    1e-3: (1.263, 1.258, 1.571, 1.570, 1.573, 9.67e-4, 5.01e-4),
    3e-3: (1.258, 1.250, 1.480, 1.478, 1.482, 2.75e-3, 1.52e-3),
    1e-2: (1.280, 1.267, 0.9995, 0.9987, 1.0003, 9.48e-3, 4.88e-3),
}

for _tau, (_one, _official, _mask, _low, _high, _, _) in PARETO.items():
    _at = f"{_tau:.0e}".replace("e-0", "e-")
    _all = (24, 24)
    RATIOS |= {
        f"packer19/width-one-static@{_at}": Ratio(_one, "tab:packer-pareto", "width-one / static", wins=_all),
        f"packer19/official-compact@{_at}": Ratio(_official, "tab:packer-pareto", "official / compaction", wins=_all),
        f"packer19/mask-compact@{_at}": Ratio(
            _mask, "tab:packer-pareto", "logical mask / compaction", _low, _high, "95 % CI"
        ),
    }

# tab:width-regime: ratio of baseline to active, interval, windows won of 40.
WIDTHS: dict[int, Ratio] = {
    width: Ratio(value, "tab:width-regime", f"baseline / active at W = {width}", low, high, "95 % CI", (wins, 40))
    for width, value, low, high, wins in (
        (1, 0.992, 0.980, 1.008, 6),
        (2, 1.073, 1.049, 1.097, 33),
        (4, 1.229, 1.195, 1.264, 40),
        (8, 1.369, 1.327, 1.411, 40),
        (16, 1.621, 1.487, 1.797, 40),
    )
}
RATIOS |= {f"imagenet/width-{width}": ratio for width, ratio in WIDTHS.items()}

# tab:m3-grouping: H_D, padding, active over static slots, static over active time.
GROUPING: dict[str, tuple[float, float, float, float]] = {
    "homogeneous": (0.127, 0.110, 0.892, 1.105),
    "heterogeneous": (0.236, 0.236, 0.802, 1.217),
    "random 1": (0.254, 0.293, 0.776, 1.258),
    "random 2": (0.264, 0.270, 0.789, 1.235),
    "random 3": (0.260, 0.279, 0.764, 1.271),
}
RATIOS |= {
    f"grouping/{layout.replace(' ', '-')}": Ratio(row[3], "tab:m3-grouping", f"static / active, {layout} layout")
    for layout, row in GROUPING.items()
}

# tab:packer-native-stopping: threshold of potential change, residual reached, total variation, seconds.
NATIVE: tuple[tuple[float, float, float, float], ...] = (
    (1e-2, 9.01e-4, 8.83e-4, 6.812),
    (3e-3, 1.93e-4, 1.91e-4, 11.403),
    (1e-3, 1.11e-5, 2.08e-6, 20.607),
    (3e-4, 1.18e-6, 4.96e-7, 40.625),
    (1e-4, 1.18e-6, 4.96e-7, 43.251),
    (1e-5, 1.18e-6, 4.96e-7, 46.285),
    (1e-6, 1.18e-6, 4.96e-7, 46.281),
)

# tab:absolute-ot-times, seconds of the OT stage by arm.
SECONDS: dict[str, dict[str, float]] = {
    "packer19": {"official": 1.632, "width-one": 1.639, "static": 1.296, "mask": 2.038, "compact": 1.299},
    "metropt3": {"official": 34.772, "static": 14.839, "compact": 8.462},
    "imagenet": {"official": 440.33, "width-one": 375.84, "static": 122.17, "compact": 115.89},
}

# tab:imagenet-quality: for each number of function evaluations, (official, compact) of curvature, held-out error of
# flow matching, projected Frechet distance; and the largest ratio each test allowed.
QUALITY: dict[int, dict[str, tuple[float, float]]] = {
    4: {"curvature": (5.4630, 5.4448), "loss": (1.07842, 1.07859), "frechet": (1.3278, 1.2886)},
    8: {"curvature": (2.8300, 2.8356), "loss": (1.07842, 1.07859), "frechet": (1.5937, 1.5224)},
    16: {"curvature": (1.4476, 1.4528), "loss": (1.07842, 1.07859), "frechet": (1.9004, 1.8136)},
}
QUALITY_LIMITS = {"curvature": 1.02, "loss": 1.01, "frechet": 1.10}

# sec:experiments, C66: slots of static and active, and energy of the window, static over active.
METRO_SLOTS = (5696, 3128)
METRO_ENERGY = 1.783
# sec:experiments, C80-LM: joules and MiB of mask and compact; slots removed of all.
PACKER_ENERGY = (880.0, 688.0)
PACKER_MEMORY = (80.8, 106.9)
PACKER_SLOTS = (100, 256)
# sec:experiments, C10: cases, and decisions that disagreed with float64.
PRECISION_CASES = 100
PRECISION_DISAGREE = {"fp32": 3, "tf32": 3, "guarded": 0}
# sec:experiments, shadow replay: screen-negative events, missed lanes, largest gap of row residuals.
SHADOW = (1488, 0, 1.86e-7)
# sec:experiments, C67: throughput of four workers over one.
SCALEOUT = {4: (3.965, 3.979)}
