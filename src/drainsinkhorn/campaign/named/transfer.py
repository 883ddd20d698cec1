"""The drain over other libraries: OTT-JAX by phases against its own vmap, PyKeOps against one problem at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from drainsinkhorn.campaign import loaders, peers
from drainsinkhorn.campaign.arms import described, one_thread, ours, run_serial, versus
from drainsinkhorn.campaign.named.lidar import carried
from drainsinkhorn.campaign.plan import Arm, Campaign, Loaded, Outcome, Unit, Work
from drainsinkhorn.campaign.windows import image_slices, scan_pairs
from drainsinkhorn.core.audit import Audit, Geometric
from drainsinkhorn.core.problem import Problem
from drainsinkhorn.core.protocol import Backend

STRIDE, MARGIN = 20, 0.95
PHASES = Audit(every=STRIDE, first_passage=False, margin=MARGIN)
SPREADING = Audit(every=Geometric(8, 1.25), margin=MARGIN)


def over_ott(_: str) -> Backend[Any]:
    """OTT-JAX on JAX's own device."""
    from drainsinkhorn.backends.ottjax import OttBackend

    return OttBackend(stride=STRIDE)


def over_keops(device: str) -> Backend[Any]:
    """PyKeOps."""
    from drainsinkhorn.backends.keops import KeopsBackend

    return KeopsBackend(device=device)


def single(arm: Arm) -> Arm:
    """The same arm with one thread on a CPU."""

    def run(work: Work) -> Outcome:
        with one_thread(work.place.device):
            return arm.run(work)

    return replace(arm, run=run, options={**arm.options, "one_thread": True})


def missing(make: Callable[[], Any]) -> str | None:
    """Why something cannot be made here."""
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


def campaign(scale: str, data: Path | None, device: str) -> Campaign:
    """Three windows over OTT-JAX, three LiDAR clips and three windows of images over PyKeOps."""
    full = scale == "full"
    images, scans = loaders.imagenet(data), loaders.lidar(data)
    (n_ott, w_ott), (n_scan, w_scan), (n_image, w_image) = (
        ((4096, 16), (8192, 8), (16_384, 4)) if full else ((192, 8), (160, 4), (160, 4))
    )
    # The paper tells no eps here. At 0.1 all lanes over OTT-JAX end with their first phase, and nothing drains.
    eps = {"ott": 0.02, "lidar": 0.02, "images": 0.1} if full else {"ott": 0.02, "lidar": 0.1, "images": 0.05}
    if not full:
        images = loaders.Features(images.values[:, :32].copy(), images.source)

    @cache
    def peer(stop: float) -> peers.Ott:
        return peers.Ott(stop, STRIDE)

    # Arrays of NumPy: each library takes them to its own device.
    def made(kind: str, seed: int) -> Sequence[Problem[Any]]:
        if kind == "lidar":
            return scan_pairs(scans, n_scan, w_scan, eps["lidar"], seed, "cpu")
        n, width = (n_ott, w_ott) if kind == "ott" else (n_image, w_image)
        return image_slices(images, n, width, eps[kind], seed, "cpu")

    no_ott, no_keops = partial(missing, lambda: over_ott(device)), partial(missing, lambda: over_keops(device))
    ott = partial(ours, width=w_ott, audit=PHASES, backend=over_ott, available=no_ott)
    keops = partial(ours, width=w_scan, audit=SPREADING, backend=over_keops, available=no_keops)
    serial = partial(run_serial, consumer=None, seconds=60.0)
    arms = [
        Arm(name="ott-vmap", label="OTT-JAX, its own vmap", available=no_ott, slack=1.01,
            run=partial(vmapped, peer=peer), options={"every": STRIDE, "margin": MARGIN}),
        Arm(name="ott-serial", label="OTT-JAX, one problem at a time", available=no_ott, slack=1.01,
            run=lambda work: serial(work, peer(MARGIN * work.unit.tol).serial),
            options={"every": STRIDE, "margin": MARGIN, "seconds": 60.0}),
        ott("ott-static", "static over OTT-JAX", "static"),
        ott("ott-compact", "compact over OTT-JAX", "compact"),
        single(keops("keops-serial", "PyKeOps, one problem at a time", "width-one")),
        single(carried(keops("keops-carry", "PyKeOps, one at a time, carried potentials", "width-one"))),
        single(keops("keops-static", "static over PyKeOps", "static")),
        single(keops("keops-compact", "compact over PyKeOps", "compact")),
    ]  # fmt: skip
    names = {
        kind: tuple(arm.name for arm in arms if arm.name.startswith("ott" if kind == "ott" else "keops"))
        for kind in ("ott", "lidar", "images")
    }
    shapes = {"ott": (n_ott, w_ott), "lidar": (n_scan, w_scan), "images": (n_image, w_image)}
    titles = {"ott": "OTT images", "lidar": "KeOps lidar", "images": "KeOps images"}
    units = [
        Unit(
            name=f"{titles[kind]} {seed}",
            load=lambda kind=kind, seed=seed: Loaded(made(kind, seed)),
            options={"n": shapes[kind][0], "width": shapes[kind][1], "eps": eps[kind], "seed": seed},
            arms=names[kind],
            repeats=3,
        )
        for kind in titles
        for seed in range(3 if full else 2)
    ]
    of = {kind: [unit.name for unit in units if unit.name.startswith(title)] for kind, title in titles.items()}
    return Campaign(
        name="transfer",
        title="Transfer: the drain over OTT-JAX and PyKeOps",
        scale=scale,
        arms=arms,
        units=units,
        contrasts=[
            versus("OTT vmap / compact", "ott-compact", "ott-vmap", "transfer/ott-vmap-active", units=of["ott"]),
            versus("OTT static / compact", "ott-compact", "ott-static", "transfer/ott-static-active", units=of["ott"]),
            versus("OTT serial / compact", "ott-compact", "ott-serial", units=of["ott"]),
            versus(
                "KeOps carry / compact, LiDAR",
                "keops-compact",
                "keops-carry",
                "lidar/sequential-active",
                units=of["lidar"],
            ),
            versus("KeOps serial / compact, LiDAR", "keops-compact", "keops-serial", units=of["lidar"]),
            versus("KeOps static / compact, LiDAR", "keops-compact", "keops-static", units=of["lidar"]),
            versus(
                "KeOps serial / compact, images",
                "keops-compact",
                "keops-serial",
                "transfer/keops-sequential-active",
                units=of["images"],
            ),
            versus("KeOps static / compact, images", "keops-compact", "keops-static", units=of["images"]),
        ],
        inputs={**images.source.inputs, **scans.source.inputs},
        options=described(
            images.source,
            device,
            *scans.source.differs,
            "images against slices of them along the first component",
            *(() if full else ("the leading 32 components",)),
        ),
    )
