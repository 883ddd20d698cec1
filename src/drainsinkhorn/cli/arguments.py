"""Arguments that commands share: the files of problems, and how problems are made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drainsinkhorn.cli.inputs import Reading
from drainsinkhorn.cli.messages import fail
from drainsinkhorn.run.archives import GIB
from drainsinkhorn.run.eps_text import SYNTAX

SOURCES = Annotated[
    list[Path],
    typer.Argument(
        metavar="IN...",
        help="One .npz file of problems; or two sides X Y, files or folders of clouds (.npy, .csv, .parquet, .bin, "
        ".pcd); or many clouds with --consecutive; or an .h5ad file with --key.",
    ),
]
EPS = Annotated[
    str | None,
    typer.Option(
        metavar="EPS",
        help=f"eps of clouds, or of an .npz file that has none: {SYNTAX}. Clouds have 5% by default.",
        show_default=False,
    ),
]
RHO = Annotated[
    str | None,
    typer.Option(
        metavar="RHO",
        help="Price of soft marginals, of clouds or of an .npz file that has none: a number, or two for rows,columns; "
        "inf is a hard marginal.",
        show_default=False,
    ),
]
CONSECUTIVE = Annotated[bool, typer.Option("--consecutive", help="Couple each cloud with the next one.")]
KEY = Annotated[str | None, typer.Option(metavar="COLUMN", help="With .h5ad: the column of obs that has the times.")]
REP = Annotated[str, typer.Option(metavar="NAME", help="With .h5ad: the entry of obsm that has the points, or X.")]
TIMES = Annotated[
    str | None, typer.Option(metavar="NAMES", help="With .h5ad: time points in order, separated by commas.")
]
READ_LIMIT = Annotated[
    float | None,
    typer.Option(
        metavar="GIB",
        help="Size to which all files together may unpack. By default half of the available memory, and 1 GiB for an "
        ".npz file that unpacks to more than 100 times its size.",
    ),
]


def limit_of(gib: float | None) -> int | None:
    """Return a limit in GiB as bytes; end the command if it is no positive number."""
    if gib is not None and not 0 < gib < 2**30:
        fail(f"read-limit must be a positive number of GiB, got {gib}")
    return None if gib is None else int(gib * GIB)


def make_reading(
    eps: str | None,
    consecutive: bool,
    key: str | None,
    rep: str,
    times: str | None,
    read_limit: float | None,
    rho: str | None = None,
) -> Reading:
    """Return the settings, from a command's options, with which its files are read as problems."""
    order = None if times is None else [name.strip() for name in times.split(",")]
    limit = limit_of(read_limit)
    return Reading(eps=eps, rho=rho, consecutive=consecutive, key=key, rep=rep, times=order, limit=limit)
