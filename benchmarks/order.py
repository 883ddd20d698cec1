"""Order of work: how well depth is predicted, and what grouping does to windows (the paper's M3 intervention).

    python benchmarks/order.py                # generated families and the workloads
    python benchmarks/order.py --data DIR     # with real windows from the .npz files of a folder

For each family: rank correlation of predicted and reached depth, and static slots over needed slots, minus one
(padding), of windows of eight in each order. The same problems, the same work, other windows.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

from families import families
from scipy.stats import spearmanr

import drainsinkhorn as ds
from drainsinkhorn.core.options import ORDERS
from drainsinkhorn.numerics.depth import predicted_depth
from drainsinkhorn.run.validate import validate
from drainsinkhorn.workloads import WORKLOADS, load

MAX_DEPTH = 3000


def row(name: str, batch: list[ds.Problem[Any]], accelerate: str, width: int) -> None:
    options = ds.Options(max_depth=MAX_DEPTH, accelerate=accelerate, mode="compact", width=width, rescue=False)
    foretold = [predicted_depth(validate(p, options.tol), momentum=accelerate == "momentum") for p in batch]
    runs = {order: ds.solve(batch, options=options, order=order) for order in ORDERS}
    depths = [result.depth for result in runs["given"]]
    assert all([result.depth for result in run] == depths for run in runs.values())
    needed = sum(depths)
    padding = "  ".join(f"{order} {run.ledger.static_slots / needed - 1:5.2f}" for order, run in runs.items())
    rank = spearmanr(foretold, depths).statistic if len(set(depths)) > 1 else float("nan")
    print(f"{name:24s} {accelerate:9s} {len(batch):4d} problems  rank correlation {rank:5.2f}  padding: {padding}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--width", type=int, default=8)
    asked = parser.parse_args()
    batches: dict[str, list[ds.Problem[Any]]] = defaultdict(list)
    for name in WORKLOADS:
        batches[f"workload {name}"] = load(name)[0](0)
    for name, problem in families(0, asked.data):
        batches[name.split("/")[0].split(" ")[0]].append(problem)
        batches["all families"].append(problem)
    for name, batch in batches.items():
        for accelerate in ("momentum", "none"):
            if len(batch) > asked.width:
                row(name, batch, accelerate, asked.width)


if __name__ == "__main__":
    main()
