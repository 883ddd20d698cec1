"""Tiles by kind of scores, measured once for each kind of GPU. Tiles never depend on the width of a pack.

The table here was measured on an H200. `drain tune` measures the GPU at hand and writes its tiles to a file that is
read from then on.
"""

from __future__ import annotations

import json
import math
import os
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypedDict

from drainsinkhorn.backends.triton.kernels import columns as c


class Tile(TypedDict):
    """Rows and columns of a tile, warps of a program, stages of its pipeline, blocks of columns worth a program.

    `registers` bounds those of a thread, so that more programs fit on a multiprocessor; 0 leaves them to the compiler.
    `resident` are the programs that fit on one.
    """

    bm: int
    bn: int
    warps: int
    stages: int
    least: int
    registers: int
    resident: int


DIRECT, ROOT, PRODUCT, STORED = (kind.value for kind in (c.DIRECT, c.ROOT, c.PRODUCT, c.STORED))
KINDS = {DIRECT: "direct", ROOT: "root", PRODUCT: "product", STORED: "stored"}


def made(bm: int, bn: int, warps: int, stages: int, least: int, registers: int, resident: int) -> Tile:
    """Return a Tile from its fields in their order."""
    return Tile(bm=bm, bn=bn, warps=warps, stages=stages, least=least, registers=registers, resident=resident)


TILES: dict[tuple[int, int], Tile] = {
    **{(DIRECT, dim): made(64, 128, 4, 3, 8, 128, 4) for dim in range(1, 5)},
    (ROOT, 16): made(32, 128, 4, 2, 4, 0, 4),
    (PRODUCT, 16): made(64, 128, 4, 3, 8, 128, 4),
    (PRODUCT, 32): made(64, 128, 4, 2, 8, 0, 3),
    (PRODUCT, 64): made(128, 64, 4, 2, 8, 0, 3),
    (STORED, 16): made(32, 64, 4, 3, 4, 0, 7),
}


class TripleTile(TypedDict):
    """The fields of `Tile` that tiles of points in three parts choose; rows are TRIPLE_ROWS, warps TRIPLE_WARPS."""

    bn: int
    stages: int
    least: int
    registers: int
    resident: int


TRIPLE_WARPS = 4
"""As many as other legs of lanes whose last program applies the leg: sums depend on it."""
TRIPLE_TILES: dict[tuple[int, bool], TripleTile] = {
    (16, False): {"bn": 64, "stages": 2, "least": 8, "registers": 168, "resident": 3},
    (32, False): {"bn": 64, "stages": 2, "least": 8, "registers": 168, "resident": 3},
    (64, False): {"bn": 32, "stages": 2, "least": 16, "registers": 0, "resident": 2},
    (16, True): {"bn": 64, "stages": 2, "least": 8, "registers": 0, "resident": 2},
    (32, True): {"bn": 64, "stages": 2, "least": 8, "registers": 0, "resident": 2},
    (64, True): {"bn": 32, "stages": 2, "least": 16, "registers": 0, "resident": 2},
}
"""Tiles of points in three parts, by coordinates of a chunk and whether exponentials are compensated."""

LARGEST = 128
"""Rows and columns of a tile of stored scores, at most: by so much a stored matrix is padded."""
MULTIPROCESSORS = 132
"""Of the GPU on which tiles were measured. One that has fewer or more computes the same numbers in the same order."""
FILLED, MOST_SHARES = 0.9, 16
"""How much of the GPU a lane that is left alone should fill, on average over its time; programs of a tile at most."""


@lru_cache(maxsize=16384)
def splits(rows: int, cols: int, bm: int, bn: int, least: int, resident: int) -> int:
    """Return the number of programs that share the columns of a tile of rows: a function of the problem alone.

    It is the least for which a lane alone fills the device; programs run in waves, of which the last may be small.
    """
    tiles, blocks = -(-rows // bm), -(-cols // bn)
    shares = range(1, max(1, min(MOST_SHARES, blocks // least)) + 1)
    waves = [tiles * share / (resident * MULTIPROCESSORS) for share in shares]
    filled = [wave / math.ceil(wave) for wave in waves]
    return next(
        (share for share, full in zip(shares, filled, strict=True) if full >= FILLED), 1 + filled.index(max(filled))
    )


def options(warps: int, stages: int, registers: int) -> dict[str, int]:
    """Return options of a launch from those of a tile."""
    bound = {"maxnreg": registers} if registers else {}
    return {"num_warps": warps, "num_stages": stages, **bound}


def tile(kind: int, dp: int, gpu: str = "") -> Tile:
    """Return the tile for a kind of scores: the one measured on this GPU, or that of the table."""
    return (tuned(gpu) if gpu else {}).get((kind, dp), TILES[kind, dp])


def cache_file(gpu: str) -> Path:
    """Return the file with the tiles of a GPU."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drainsinkhorn"
    return folder / f"tiles-{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}.json"


@cache
def tuned(gpu: str) -> dict[tuple[int, int], Tile]:
    """Return the tiles that `drain tune` wrote for a GPU; none if the file is missing or of another version."""
    try:
        rows = json.loads(cache_file(gpu).read_text())["tiles"]
        return {(int(row["kind"]), int(row["dp"])): _checked(int(row["kind"]), row["tile"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def keep(gpu: str, tiles: dict[tuple[int, int], Tile]) -> Path:
    """Write the tiles of a GPU, and return the file."""
    path = cache_file(gpu)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"kind": kind, "dp": dp, "tile": dict(found)} for (kind, dp), found in tiles.items()]
    path.write_text(json.dumps({"gpu": gpu, "tiles": rows}, indent=1) + "\n")
    tuned.cache_clear()
    return path


def _checked(kind: int, raw: dict[str, Any]) -> Tile:
    names = ("bm", "bn", "warps", "stages", "least", "registers", "resident")
    found = Tile(**{name: raw[name] for name in names})  # type: ignore[typeddict-item]
    powers = (found["bm"], found["bn"], found["warps"])
    if not all(type(raw[name]) is int and raw[name] >= (name != "registers") for name in names):
        raise ValueError(f"a tile is made of positive integers, got {raw}")
    if any(value & (value - 1) for value in powers):
        raise ValueError(f"rows, columns and warps of a tile are powers of two, got {raw}")
    if kind == STORED and max(powers) > LARGEST:
        raise ValueError(f"a tile of stored scores has at most {LARGEST} rows and columns, got {raw}")
    return found


class ConsumerTile(TypedDict):
    """Rows and columns of a tile, warps of a program, stages of its pipeline, most registers of a thread (0: any)."""

    bm: int
    bn: int
    warps: int
    stages: int
    registers: int


CONSUMER_TILES: dict[tuple[int, int], ConsumerTile] = {
    **{(DIRECT, dim): {"bm": 32, "bn": 64, "warps": 4, "stages": 2, "registers": 0} for dim in range(1, 5)},
    (ROOT, 16): {"bm": 32, "bn": 128, "warps": 4, "stages": 2, "registers": 0},
    (PRODUCT, 16): {"bm": 64, "bn": 64, "warps": 4, "stages": 3, "registers": 0},
    (PRODUCT, 32): {"bm": 64, "bn": 128, "warps": 4, "stages": 2, "registers": 0},
    (PRODUCT, 64): {"bm": 64, "bn": 64, "warps": 4, "stages": 2, "registers": 0},
    (STORED, 16): {"bm": 64, "bn": 64, "warps": 4, "stages": 3, "registers": 0},
}
"""For means of up to 16 channels. Rows and columns divide 128, to which sides are padded."""


def consumer_tile(kind: int, dp: int, channels: int) -> ConsumerTile:
    """Return the tile of consumers that compute means of `channels` channels, or no means if that is 0."""
    found = CONSUMER_TILES[kind, dp]
    if channels > 16 or (channels == 0 and kind == PRODUCT):
        # Sums of many channels, and places of the largest terms, take the registers of half a tile.
        return {"bm": min(found["bm"], 64), "bn": 64, "warps": 4, "stages": 2, "registers": 0}
    if channels == 0 and kind == STORED:
        # Without products sweeps wait for memory, which more programs hide.
        return {**found, "bm": 32}
    return found
