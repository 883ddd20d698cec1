"""Cell transitions: which types become which, from couplings of consecutive time points and their bootstraps.

    python examples/transitions.py                 # a generated tree of cell types over four time points
    python examples/transitions.py --data DIR      # DIR/packer19.npz (C. elegans) and DIR/pbmc_ifnb.npz (interferon)

All pairs of time points and all bootstraps are lanes of one batch. Tables are compared, in total variation, with those
of the same problems solved to 1e-6.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drainsinkhorn.cells import Table, Timepoints, couple_timepoints


class Cells(NamedTuple):
    """Cells of a data set: points, times, types, and the order of times that have none of their own."""

    name: str
    points: Any
    times: Any
    types: Any
    order: list[str] | None = None


def generated(seed: int = 0) -> Cells:
    """A stem type that becomes two, which become four; each drifts."""
    rng = np.random.default_rng(seed)
    parents = {"stem": ["neural", "muscle"], "neural": ["motor", "sensory"], "muscle": ["smooth", "striated"]}
    centres, points, times, types = {"stem": np.zeros(10)}, list[Any](), list[Any](), list[Any]()
    level = ["stem"]
    for time_point in range(4):
        for name in level:
            size = int(rng.integers(120, 200))
            points.append(centres[name] + rng.normal(scale=0.7, size=(size, 10)))
            times += [time_point] * size
            types += [name] * size
        new: list[str] = []
        for name in level:
            for child in parents.get(name, [name]):
                centres[child] = centres[name] + (rng.normal(size=10) if child != name else 0.2)
                new.append(child)
        level = new
    return Cells("generated", np.concatenate(points), np.array(times), np.array(types))


def packer(folder: Path) -> Cells:
    with np.load(folder / "packer19.npz") as stored:
        known = stored["time_point"] != "mixed"
        minutes = np.char.replace(stored["time_point"][known], "_minutes", "").astype(int)
        return Cells("Packer19", stored["pca"][known], minutes, stored["cell_type"][known])


def pbmc(folder: Path, most: int, seed: int = 0) -> Cells:
    """Control to stimulated; types are clusters of all cells, since the source names none."""
    from sklearn.cluster import KMeans

    with np.load(folder / "pbmc_ifnb.npz") as stored:
        points, stimulated = stored["pca"], stored["stimulated"]
    rng = np.random.default_rng(seed)
    clusters = KMeans(8, n_init=1, random_state=seed).fit_predict(points)
    some = np.concatenate([rng.permutation(np.flatnonzero(stimulated == k))[:most] for k in (0, 1)])
    order = ["control", "stimulated"]
    types = np.array([f"cluster {k}" for k in clusters[some]])
    return Cells("PBMC, interferon", points[some], np.array(order)[stimulated[some]], types, order)


def study(cells: Cells, eps: float, bootstraps: int) -> dict[str, Any]:
    begun = time.perf_counter()
    found = couple_timepoints(cells.points, cells.times, times=cells.order, eps=eps, bootstraps=bootstraps)
    solving = time.perf_counter() - begun
    found.solution.raise_for_status()
    begun = time.perf_counter()
    tables = [found.transitions(cells.types, pair) for pair in range(len(found.pairs))]
    using = time.perf_counter() - begun
    begun = time.perf_counter()
    reference = couple_timepoints(cells.points, cells.times, times=cells.order, eps=eps, tol=1e-6)
    strict = time.perf_counter() - begun
    apart = [table.distance(reference.transitions(cells.types, pair)) for pair, table in enumerate(tables)]
    return {
        "name": cells.name, "found": found, "tables": tables, "distance": apart, "solving_s": solving,
        "tables_s": using, "reference_s": strict, "problems": len(found.solution),
    }  # fmt: skip


def heat(axis: Any, table: Table, title: str) -> Any:
    image = axis.imshow(table.conditional, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axis.set_xticks(range(len(table.targets)), table.targets, rotation=60, ha="right", fontsize=7)
    axis.set_yticks(range(len(table.sources)), table.sources, fontsize=7)
    axis.set_title(title, fontsize=9)
    for k, row in enumerate(table.conditional):
        for l, share in enumerate(row):
            if share >= 0.1:
                spread = "" if table.spread is None else f"\n±{table.spread[k, l]:.2f}"
                color = "white" if share > 0.6 else "black"
                axis.text(l, k, f"{share:.2f}{spread}", ha="center", va="center", fontsize=6, color=color)
    return image


def draw(studies: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tables = [(s, pair, table) for s in studies for pair, table in enumerate(s["tables"])]
    figure, axes = plt.subplots(1, len(tables), figsize=(5 * len(tables), 4.6), layout="constrained", squeeze=False)
    for axis, (one, pair, table) in zip(axes[0], tables, strict=True):
        points: Timepoints = one["found"]
        first, second = points.pairs[pair]
        apart = one["distance"][pair]
        image = heat(axis, table, f"{one['name']}: {first} to {second}\ntotal variation from 1e-6: {apart:.1e}")
    figure.colorbar(image, ax=axes[0].tolist(), label="share of a type that goes there", shrink=0.8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--eps", type=float, default=0.02, help="share of the mean cost of a pair")
    parser.add_argument("--bootstraps", type=int, default=16)
    parser.add_argument("--cells", type=int, default=2500, help="cells of each condition of PBMC")
    parser.add_argument("--out", type=Path, default=Path("transitions.png"))
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    sets = [generated()] if args.data is None else [packer(args.data), pbmc(args.data, args.cells)]
    studies = []
    for cells in sets:
        few = args.bootstraps if len(cells.points) < 3000 else min(args.bootstraps, 4)
        one = study(cells, args.eps, few)
        studies.append(one)
        print(f"{one['name']}: {one['problems']} problems, OT {one['solving_s']:.2f} s, tables {one['tables_s']:.2f} s;"
              f" the pairs alone to 1e-6 {one['reference_s']:.2f} s", flush=True)  # fmt: skip
        for pair, table in zip(one["found"].pairs, one["tables"], strict=True):
            best = [f"{s} -> {table.targets[k]} {table.conditional[i, k]:.2f}"
                    for i, s in enumerate(table.sources) for k in [int(table.conditional[i].argmax())]]  # fmt: skip
            print(f"  {pair[0]} to {pair[1]}: " + ", ".join(best))
        print("  total variation from the tables at 1e-6: " + ", ".join(f"{apart:.2e}" for apart in one["distance"]))
    draw(studies, args.out)
    if args.json is not None:
        report = [
            {key: one[key] for key in ("name", "problems", "solving_s", "tables_s", "reference_s", "distance")}
            | {"mass": [table.mass.tolist() for table in one["tables"]]}
            for one in studies
        ]
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
