"""The public name of `drainsinkhorn.fleet`."""

from drainsinkhorn.fleet import Fleet as Fleet
from drainsinkhorn.fleet import FleetStream as FleetStream
from drainsinkhorn.fleet import LocalFleet as LocalFleet
from drainsinkhorn.fleet import RayFleet as RayFleet
from drainsinkhorn.fleet import RowShardedBackend as RowShardedBackend
