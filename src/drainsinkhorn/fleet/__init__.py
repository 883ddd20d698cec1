"""Distributed solving: fleets of workers for many problems, and one huge problem with its rows split over ranks."""

from drainsinkhorn.fleet.fleet import Fleet as Fleet
from drainsinkhorn.fleet.fleet import FleetStream as FleetStream
from drainsinkhorn.fleet.local import LocalFleet as LocalFleet
from drainsinkhorn.fleet.rays import RayFleet as RayFleet
from drainsinkhorn.fleet.rows import RowShardedBackend as RowShardedBackend
