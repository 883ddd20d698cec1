"""A fleet of actors on a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from drainsinkhorn.fleet import wire
from drainsinkhorn.fleet.fleet import Fleet, check_counts
from drainsinkhorn.fleet.worker_run import Assignment, Message, WorkerRun
from drainsinkhorn.model.errors import BackendUnavailable, FleetError, OptionsError

KNOCK_SECONDS = 10.0
LOCAL, LOOPBACK = "local", "127.0.0.1"


class RayFleet(Fleet):
    """Actors on a Ray cluster, one per group of cores or per GPU. Needs the extra `ray`.

    Problems travel through Ray's object store and are read in place. A worker that is lost is replaced wherever the
    cluster has room.

    Args:
        address: Address of a running cluster ("auto": the one this machine belongs to). "local" starts one for this
            program, on loopback alone and without dashboard, and ends it with the fleet.
        workers: Number of workers; None: as many as the cluster has room for.
        cores: Number of cores of each worker.
        gpus: Number of GPUs of each worker; 0: none.
        hang: Seconds without a message after which a worker that has work, or is starting, is replaced.
        strikes: Number of workers lost while they had a problem alone, at which the problem is quarantined.
    """

    def __init__(
        self,
        address: str = LOCAL,
        workers: int | None = None,
        *,
        cores: int = 1,
        gpus: float = 0,
        hang: float = 300.0,
        strikes: int = 3,
    ) -> None:
        check_counts(workers, cores)
        if not gpus >= 0:
            raise OptionsError(f"gpus must not be negative, got {gpus!r}")
        ray, started = _connect(address, (workers or 0) * cores)
        room = _room(ray, cores, gpus)
        if room < (workers or 1):
            if started:
                ray.shutdown()
            need = f"{cores} cores" + (f" and {gpus:g} GPUs" if gpus else "")
            raise FleetError(f"the cluster has room for {room} workers of {need} each, {workers or 1} were asked for")
        super().__init__(RayPool(ray, workers or room, cores, gpus, started), hang=hang, strikes=strikes)


def _connect(address: str, cores: int) -> tuple[Any, bool]:
    """Return Ray, connected to a cluster, and whether that cluster was started here."""
    # Otherwise Ray reports usage statistics to its developers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise BackendUnavailable(f"RayFleet needs Ray ({error}); pip install 'drainsinkhorn[ray]'") from error
    if ray.is_initialized():
        return ray, False
    try:
        if address == LOCAL:
            _start(ray, cores)
        else:
            _knock(address)
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise FleetError(f"no Ray cluster answers at {address!r}: {error}") from None
    return ray, address == LOCAL


def _knock(address: str) -> None:
    """Raise OSError if no server listens at HOST:PORT. Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS).close()


def _start(ray: Any, cores: int) -> None:
    """Start a cluster that only this machine can reach; raise FleetError if Ray listens at another address."""
    with _clusters_ruled_out(ray):
        ray.init(
            "local",
            num_cpus=cores or None,
            include_dashboard=False,
            _node_ip_address=LOOPBACK,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    address = ray.util.get_node_ip_address()
    if address != LOOPBACK:
        ray.shutdown()
        raise FleetError(
            f"this version of Ray listens at {address}, and not on loopback alone; start a cluster yourself and give "
            "its address"
        )


@contextlib.contextmanager
def _clusters_ruled_out(ray: Any) -> Iterator[None]:
    """Make Ray accept loopback as the address of its node, so that its servers listen there alone.

    `ray.init` replaces 127.0.0.1 by an address that other machines can reach, unless clusters of several machines are
    ruled out. No public setting does that here: Ray reads RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER once, when it is imported,
    so it comes too late for a program that imported Ray, and for any other it would also change every later
    `ray.init`. With another loopback address, such as 127.0.0.2, Ray's servers listen on all interfaces. So the
    constant that holds the variable is set while Ray starts. A version of Ray without it is started as it is, and
    `_start` checks where it listens.
    """
    constants, name = getattr(getattr(ray, "_private", None), "ray_constants", None), "ENABLE_RAY_CLUSTER"
    if not hasattr(constants, name):
        yield
        return
    before = getattr(constants, name)
    setattr(constants, name, False)
    try:
        yield
    finally:
        setattr(constants, name, before)


def _room(ray: Any, cores: int, gpus: float) -> int:
    """Number of workers that the cluster has room for, counted node by node."""
    count = 0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            room = has.get("CPU", 0) // cores
            count += int(min(room, has.get("GPU", 0) // gpus) if gpus else room)
    return count


class Actor:
    """A worker, whose methods run concurrently."""

    def __init__(self) -> None:
        self._run: WorkerRun | None = None

    def pid(self) -> int:
        """The process id of the worker."""
        return os.getpid()

    def begin(self, version: int, assignment: Assignment) -> Iterator[Message]:
        """Run the windows that are pushed, and yield messages. Both ends state their message format once, here."""
        if version != wire.FORMAT:
            yield Message("failed", wire.other_format(version))
            return
        self._run = WorkerRun(assignment)
        yield Message("ready", wire.FORMAT)
        yield from self._run.messages()

    def push(self, window: tuple[Any, Any]) -> None:
        """Take a window; its arrays are read where they lie, in the object store."""
        assert self._run is not None, "a window is sent when the actor is ready"
        (tickets, problems, rows), block = window
        self._run.push(wire.Parcel(tickets, problems, wire.views(block, rows)))

    def end(self) -> None:
        """Record that no further window comes."""
        assert self._run is not None, "the end is sent when the actor is ready"
        self._run.end()


class RayPool:
    """Runs the workers of a fleet as Ray actors, each of which yields a stream of messages."""

    def __init__(self, ray: Any, size: int, cores: int, gpus: float, started: bool) -> None:
        self.size = size
        self.cores = cores
        self._ray = ray
        self._started = started
        # `begin` yields messages until the end of a run, and `push`, `end` and `pid` must run meanwhile.
        self._actor = ray.remote(Actor).options(num_cpus=cores, num_gpus=gpus, max_concurrency=4, max_restarts=0)
        self._actors: dict[int, Any] = {}
        self._messages: dict[int, Any] = {}

    def pid(self, worker: int) -> int:
        """The process id of a worker."""
        return self._ray.get(self._actors[worker].pid.remote())

    def start(self, worker: int, assignment: Assignment) -> None:
        """Start an actor, or use the one that runs, and give it the assignment."""
        if worker not in self._actors:
            self._actors[worker] = self._actor.remote()
        begin = self._actors[worker].begin.options(num_returns="streaming")
        self._messages[worker] = begin.remote(wire.FORMAT, assignment)

    def send(self, worker: int, parcel: wire.Parcel) -> None:
        """Send a window through the object store, its arrays as one object, because each object costs time."""
        rows, _ = wire.layout(parcel.arrays)
        block = np.concatenate([*wire.pieces(parcel.arrays), wire.GAP])
        self._actors[worker].push.remote(self._ray.put(((parcel.tickets, parcel.problems, rows), block)))

    def finish(self, worker: int) -> None:
        """Send the message that no further window comes."""
        self._actors[worker].end.remote()

    def kill(self, worker: int) -> None:
        """Kill the actor."""
        self._messages.pop(worker, None)
        actor = self._actors.pop(worker, None)
        if actor is not None:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)

    def wait(self, timeout: float) -> list[tuple[int, Message]]:
        """Return one message of each actor that has one."""
        if not self._messages:
            time.sleep(timeout)
            return []
        workers = {id(stream): worker for worker, stream in self._messages.items()}
        streams = list(self._messages.values())
        ready, _ = self._ray.wait(streams, num_returns=len(streams), timeout=0)
        if not ready:
            ready, _ = self._ray.wait(streams, num_returns=1, timeout=timeout)
        heard = list[tuple[int, Message]]()
        for stream in ready:
            worker = workers[id(stream)]
            try:
                heard.append((worker, self._ray.get(next(stream))))
            except StopIteration:
                del self._messages[worker]
            except self._ray.exceptions.RayError as error:
                del self._messages[worker]
                heard.append((worker, Message("died", " ".join(str(error).split())[:300])))
        return heard

    def close(self) -> None:
        """End all actors, and the cluster if it was started for them."""
        for worker in list(self._actors):
            self.kill(worker)
        if self._started:
            self._ray.shutdown()
