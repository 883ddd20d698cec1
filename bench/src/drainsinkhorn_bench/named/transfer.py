"""Our executor on kernels of other libraries: OTT-JAX against its own vmap, PyKeOps against one problem at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from drainsinkhorn.core.audit import Audit, Geometric
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn_bench import loaders, peers
from drainsinkhorn_bench.arms import described, one_thread, ours, run_serial, versus
from drainsinkhorn_bench.named.lidar import carried
from drainsinkhorn_bench.plan import Arm, Campaign, Contrast, Loaded, Outcome, Unit, Work
from drainsinkhorn_bench.windows import image_slices, scan_pairs

STRIDE, MARGIN = 20, 0.95
PHASES = Audit(every=STRIDE, first_passage=False, margin=MARGIN)
SPREADING = Audit(every=Geometric(8, 1.25), margin=MARGIN)


def over_ott(_: str) -> Backend[Any]:
    """Return the backend that computes with OTT-JAX, on JAX's default device."""
    from drainsinkhorn.backends.ottjax import OttBackend

    return OttBackend(stride=STRIDE)


def over_keops(device: str) -> Backend[Any]:
    """Return the backend that computes with PyKeOps."""
    from drainsinkhorn.backends.keops import KeopsBackend

    return KeopsBackend(device=device)


def single(arm: Arm) -> Arm:
    """The same arm with one thread on a CPU."""

    def run(work: Work) -> Outcome:
        with one_thread(work.place.device):
            return arm.run(work)

    return replace(arm, run=run, options={**arm.options, "one_thread": True})


def missing(make: Callable[[], Any]) -> str | None:
    """Return the text of the ImportError that `make` raises; None if it raises none."""
    try:
        make()
    except ImportError as error:
        return str(error)
    return None


def vmapped(work: Work, peer: Callable[[float], peers.Ott]) -> Outcome:
    """OTT's own vmap: all lanes until the last one stops."""
    begun = work.place.clock()
    found = peer(MARGIN * work.unit.tol).vmap(work.problems)
    seconds = work.place.clock() - begun
    return Outcome(answers=dict(enumerate(found.potentials())), e1=seconds, depths=found.depths)


@dataclass(frozen=True)
class Window:
    """One kind of windows: points and lanes of each, eps, and how many there are.

    The paper tells no eps here. On OTT-JAX at 0.1 all lanes end with their first phase, and no lane leaves early.
    """

    title: str
    n: int
    width: int
    eps: float
    count: int

    def names(self) -> list[str]:
        """Return the names of the units."""
        return [f"{self.title} {seed}" for seed in range(self.count)]


WINDOWS = {
    "full": {
        "ott": Window("OTT images", 4096, 16, 0.02, 3),
        "lidar": Window("KeOps lidar", 8192, 8, 0.02, 3),
        "images": Window("KeOps images", 16_384, 4, 0.1, 3),
    },
    "small": {
        "ott": Window("OTT images", 192, 8, 0.02, 2),
        "lidar": Window("KeOps lidar", 160, 4, 0.1, 2),
        "images": Window("KeOps images", 160, 4, 0.05, 2),
    },
}


def campaign(scale: str, data: Path | None, device: str) -> Campaign:
    """Windows of images on the OTT-JAX backend; LiDAR clips and windows of images on the PyKeOps backend."""
    windows, full = WINDOWS[scale], scale == "full"
    images, scans = loaders.imagenet(data), loaders.lidar(data)
    if not full:
        images = loaders.Features(images.values[:, :32].copy(), images.source)
    arms = {"ott": _ott_arms(device, windows["ott"].width), "keops": _keops_arms(device, windows["lidar"].width)}

    # Arrays of NumPy: each library takes them to its own device.
    def made(kind: str, window: Window, seed: int) -> Loaded:
        how = (window.n, window.width, window.eps, seed, "cpu")
        return Loaded(scan_pairs(scans, *how) if kind == "lidar" else image_slices(images, *how))

    units = [
        Unit(
            name=name,
            load=partial(made, kind, window, seed),
            options={"n": window.n, "width": window.width, "eps": window.eps, "seed": seed},
            arms=tuple(arm.name for arm in arms["ott" if kind == "ott" else "keops"]),
            repeats=3,
        )
        for kind, window in windows.items()
        for seed, name in enumerate(window.names())
    ]
    return Campaign(
        name="transfer",
        title="Transfer: the drain over OTT-JAX and PyKeOps",
        scale=scale,
        arms=[*arms["ott"], *arms["keops"]],
        units=units,
        contrasts=_contrasts(windows),
        inputs={**images.source.inputs, **scans.source.inputs},
        options=described(
            images.source,
            device,
            *scans.source.differs,
            "images against slices of them along the first component",
            *(() if full else ("the leading 32 components",)),
        ),
    )


def _ott_arms(device: str, width: int) -> list[Arm]:
    """Return arms of OTT-JAX itself (vmap and serial) and arms of this library's executor on the OTT-JAX backend."""
    peer, absent = cache(lambda stop: peers.Ott(stop, STRIDE)), partial(missing, lambda: over_ott(device))
    told = {"every": STRIDE, "margin": MARGIN}
    drained = partial(ours, width=width, audit=PHASES, backend=over_ott, available=absent)

    def serial(work: Work) -> Outcome:
        return run_serial(work, peer(MARGIN * work.unit.tol).serial, consumer=None, seconds=60.0)

    return [
        Arm(name="ott-vmap", label="OTT-JAX, its own vmap", available=absent, slack=1.01,
            run=partial(vmapped, peer=peer), options=told),
        Arm(name="ott-serial", label="OTT-JAX, one problem at a time", available=absent, slack=1.01,
            run=serial, options={**told, "seconds": 60.0}),
        drained("ott-static", "static over OTT-JAX", "static"),
        drained("ott-compact", "compact over OTT-JAX", "compact"),
    ]  # fmt: skip


def _keops_arms(device: str, width: int) -> list[Arm]:
    """Return arms that run PyKeOps with one problem at a time, and with many in the modes static and compact."""
    absent = partial(missing, lambda: over_keops(device))
    keops = partial(ours, width=width, audit=SPREADING, backend=over_keops, available=absent)
    return [
        single(keops("keops-serial", "PyKeOps, one problem at a time", "width-one")),
        single(carried(keops("keops-carry", "PyKeOps, one at a time, carried potentials", "width-one"))),
        single(keops("keops-static", "static over PyKeOps", "static")),
        single(keops("keops-compact", "compact over PyKeOps", "compact")),
    ]


def _contrasts(windows: dict[str, Window]) -> list[Contrast]:
    """Each compact arm against the others of its library."""
    ott, lidar, images = (partial(versus, units=windows[kind].names()) for kind in ("ott", "lidar", "images"))
    return [
        ott("OTT vmap / compact", "ott-compact", "ott-vmap", "transfer/ott-vmap-active"),
        ott("OTT static / compact", "ott-compact", "ott-static", "transfer/ott-static-active"),
        ott("OTT serial / compact", "ott-compact", "ott-serial"),
        lidar("KeOps carry / compact, LiDAR", "keops-compact", "keops-carry", "lidar/sequential-active"),
        lidar("KeOps serial / compact, LiDAR", "keops-compact", "keops-serial"),
        lidar("KeOps static / compact, LiDAR", "keops-compact", "keops-static"),
        images("KeOps serial / compact, images", "keops-compact", "keops-serial", "transfer/keops-sequential-active"),
        images("KeOps static / compact, images", "keops-compact", "keops-static"),
    ]
