"""The same solver, placed differently: fleets of workers for many problems, rows over ranks for a huge one."""

from drainsinkhorn.parallel.fleet import Fleet as Fleet
from drainsinkhorn.parallel.fleet import FleetStream as FleetStream
from drainsinkhorn.parallel.local import LocalFleet as LocalFleet
from drainsinkhorn.parallel.rays import RayFleet as RayFleet
from drainsinkhorn.parallel.rows import RowShardedBackend as RowShardedBackend
