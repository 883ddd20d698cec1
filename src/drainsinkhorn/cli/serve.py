"""`drain serve`: an HTTP service on this machine."""

from __future__ import annotations

import logging
from typing import Annotated, TypeAlias, cast

import typer

from drainsinkhorn.backends import REGISTRY
from drainsinkhorn.cli.messages import fail, warn
from drainsinkhorn.core.options import RECHECKS, STARTS, Options, Rechecks
from drainsinkhorn.model.errors import DrainError
from drainsinkhorn.serve import Server, ServerLimits

MIB = 2**20
STANDARD = ServerLimits()
PORT = 8417
STOP_HELP = "Seconds to finish accepted problems after SIGTERM or Ctrl-C."
RESCUE_HELP = "Run unconverged problems once more, in float64; other problems wait meanwhile."
INIT_HELP = f"{', '.join(STARTS)}: where problems without a start begin."
RECHECK_HELP = f"{', '.join(RECHECKS)}: which converged results are recomputed before they are sent."
UNPACKED_HELP = "MiB of a request's arrays, unpacked; a JSON body may have a sixteenth."
Seconds: TypeAlias = float
Mebibytes: TypeAlias = float


def option(text: str) -> typer.models.OptionInfo:
    """Return an option with this help."""
    return typer.Option(help=text)


def serve(
    host: Annotated[str, option("Address to listen on; by default only this machine reaches it.")] = "127.0.0.1",
    port: Annotated[int, option("Port to listen on; 0: a free one.")] = PORT,
    token: Annotated[str | None, typer.Option(envvar="DRAIN_TOKEN", help="Token that requests must send.")] = None,
    tol: Annotated[float, option("Bound on the L1 residual, for problems without their own.")] = 1e-3,
    width: Annotated[int | None, option("Lanes of a pack; by default what suits the problems.")] = None,
    max_depth: Annotated[int, option("Cycles before a problem is given up.")] = 10_000,
    backend: Annotated[str, option(f"auto, {', '.join(REGISTRY)}.")] = "auto",
    accelerate: Annotated[str, option("auto, none (plain Sinkhorn), or what the backend offers.")] = "auto",
    init: Annotated[str, option(INIT_HELP)] = "auto",
    rescue: Annotated[bool, option(RESCUE_HELP)] = True,
    recheck: Annotated[str, option(RECHECK_HELP)] = "sampled",
    grace: Annotated[Seconds, option(STOP_HELP)] = 30.0,
    deadline: Annotated[Seconds, option("Seconds for requests that name no deadline.")] = STANDARD.deadline,
    max_deadline: Annotated[Seconds, option("Largest deadline of a request, in seconds.")] = STANDARD.max_deadline,
    max_body: Annotated[Mebibytes, option("MiB of the body of a request.")] = STANDARD.max_body / MIB,
    max_unpacked: Annotated[Mebibytes, option(UNPACKED_HELP)] = STANDARD.max_unpacked / MIB,
    max_memory: Annotated[Mebibytes, option("MiB that all requests take together.")] = STANDARD.max_memory / MIB,
    max_problems: Annotated[int, option("Problems of a request.")] = STANDARD.max_problems,
    max_pairs: Annotated[int, option("Pairs of points, n times m, of a problem.")] = STANDARD.max_pairs,
    capacity: Annotated[int, option("Problems that are accepted and have not ended.")] = STANDARD.capacity,
    max_connections: Annotated[int, option("Open connections.")] = STANDARD.max_connections,
    head_timeout: Annotated[Seconds, option("Seconds to receive the head of a request.")] = STANDARD.head_timeout,
    body_timeout: Annotated[Seconds, option("Seconds to receive its body.")] = STANDARD.body_timeout,
    write_timeout: Annotated[Seconds, option("Seconds to take 1 MiB of an answer.")] = STANDARD.write_timeout,
    idle_timeout: Annotated[Seconds, option("Seconds before an idle connection is closed.")] = STANDARD.idle_timeout,
) -> None:
    """Solve problems over HTTP for many clients, which share one device. SIGTERM or Ctrl-C stops it with exit code 0.

    It has no encryption, and no authentication but --token: put a reverse proxy in front of it.
    """
    try:
        limits = ServerLimits(
            max_body=_bytes(max_body), max_unpacked=_bytes(max_unpacked), max_memory=_bytes(max_memory),
            max_problems=max_problems, max_pairs=max_pairs, capacity=capacity, max_connections=max_connections,
            deadline=deadline, max_deadline=max_deadline, head_timeout=head_timeout, body_timeout=body_timeout,
            write_timeout=write_timeout, idle_timeout=idle_timeout,
        )  # fmt: skip
        options = Options(
            tol=tol, width=width, max_depth=max_depth, accelerate=accelerate, init=init, rescue=rescue,
            recheck=cast("Rechecks", recheck),
        )  # fmt: skip
        run(Server(host=host, port=port, token=token, limits=limits, grace=grace, backend=backend, options=options))
    except DrainError as error:
        fail(error)


def run(server: Server) -> None:
    """Serve until a signal; print the address once requests are accepted."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    if not server.is_loopback:
        warn(
            f"warning: {server.address} can be reached from other machines. Nothing is encrypted, and only --token "
            "keeps anybody out: put a reverse proxy in front of it"
        )
    server.run(lambda: print(f"listening on {server.address}", flush=True))  # noqa: T201


def _bytes(mebibytes: float) -> int:
    """Return mebibytes as bytes; 0, which ServerLimits rejects, if the number is not positive or too large."""
    return int(mebibytes * MIB) if 0 < mebibytes < 2**30 else 0
