"""The control plane: standard library only, no arrays. Read it top down from `executor`."""

from drainsinkhorn.core.forecast import DepthForecast as DepthForecast
from drainsinkhorn.core.forecast import Forecasts as Forecasts
