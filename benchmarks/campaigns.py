"""`drain bench run` and `report` where neither typer nor rich is installed, as on a bare GPU machine.

    export PYTHONPATH=src:bench/src
    python benchmarks/campaigns.py --scale full --device cuda --data DIR --out bench-runs --seconds 420
    python benchmarks/campaigns.py grouping lidar --scale full --device cuda --out bench-runs

Run again to go on; exit code 3 says that something is left. `--report` writes the page from what is there.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from drainsinkhorn.model.errors import DrainError
from drainsinkhorn_bench import meters, named, records, report, runner

STOPPED = 3


def say(tick: runner.Tick) -> None:
    left = "" if tick.left is None else f", about {tick.left:.0f} s left of this campaign"
    print(f"{time.strftime('%H:%M:%S')} [{tick.done}/{tick.total}] {tick.campaign}: {tick.what}{left}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"any of {', '.join(named.NAMES)}; none: all")
    parser.add_argument("--scale", default="small")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("bench-runs"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, help="begin nothing that would end later than this")
    parser.add_argument("--only", help="only units and studies whose names begin so")
    parser.add_argument("--report", action="store_true", help="write the report as well")
    asked = parser.parse_args()
    begun, complete = time.monotonic(), True
    place = meters.place(asked.device)
    for name in asked.names or named.NAMES:
        left = None if asked.seconds is None else asked.seconds - (time.monotonic() - begun)
        if left is not None and left <= 0:
            complete = False
            break
        try:
            plan = named.load(name, scale=asked.scale, data=asked.data, device=place.device)
            ended = runner.run(plan, asked.out / name, place, seconds=left, tell=say, only=asked.only)
        except DrainError as error:
            print(f"{name}: {error}", flush=True)
            complete = False
            continue
        for (unit, arm), why in ended.void.items():
            print(f"void: {name}/{unit}/{arm}: {why}")
        print(f"{name}: {ended.done} of {ended.total} done", flush=True)
        complete = complete and ended.complete
    if asked.report:
        print(*report.write(records.read_all(asked.out), asked.out / "report"), sep="\n")
    return 0 if complete else STOPPED


if __name__ == "__main__":
    sys.exit(main())
