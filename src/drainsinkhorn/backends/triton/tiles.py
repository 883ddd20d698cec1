"""Tiles by kind of scores: data, measured once per kind of GPU. They never depend on the width of a pack."""

from __future__ import annotations

from typing import TypedDict


class Tile(TypedDict):
    """Rows and columns of a tile, warps of a program, stages of its pipeline."""

    bm: int
    bn: int
    warps: int
    stages: int


DIRECT, ROOT, PRODUCT, STORED = range(4)

TILES: dict[tuple[int, int], Tile] = {
    **{(DIRECT, dim): {"bm": 32, "bn": 64, "warps": 1, "stages": 2} for dim in range(1, 5)},
    (ROOT, 16): {"bm": 32, "bn": 128, "warps": 4, "stages": 2},
    (PRODUCT, 16): {"bm": 64, "bn": 128, "warps": 4, "stages": 3},
    (PRODUCT, 32): {"bm": 64, "bn": 128, "warps": 4, "stages": 2},
    (PRODUCT, 64): {"bm": 128, "bn": 64, "warps": 4, "stages": 2},
    (STORED, 16): {"bm": 16, "bn": 128, "warps": 2, "stages": 3},
}


def tile(kind: int, dp: int) -> Tile:
    """The tile for a kind of scores."""
    return TILES[kind, dp]


CONSUMER_TILES: dict[tuple[int, int], Tile] = {
    **TILES,
    (PRODUCT, 16): {"bm": 64, "bn": 128, "warps": 4, "stages": 2},
    (PRODUCT, 64): {"bm": 64, "bn": 64, "warps": 4, "stages": 2},
}


def consumer_tile(kind: int, dp: int, channels: int) -> Tile:
    """The tile for consuming plans with so many channels: products of terms and values want at least 16 x 16."""
    found = CONSUMER_TILES[kind, dp]
    if channels > 16:
        # Sums of many channels take the registers of half a tile.
        return {**found, "bm": min(found["bm"], 64), "bn": 64, "warps": max(found["warps"], 4)}
    return found
