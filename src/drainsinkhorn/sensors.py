"""Drift of sensor windows and flow between LiDAR frames."""

from drainsinkhorn.apps.sensors import Drift as Drift
from drainsinkhorn.apps.sensors import Flow as Flow
from drainsinkhorn.apps.sensors import Scores as Scores
from drainsinkhorn.apps.sensors import frame_flow as frame_flow
from drainsinkhorn.apps.sensors import windows as windows
