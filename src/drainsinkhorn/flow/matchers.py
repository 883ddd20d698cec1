"""torchcfm's flow matchers under their own names: see `drainsinkhorn.apps.flow.matchers`."""

from drainsinkhorn.apps.flow.matchers import *  # noqa: F403
from drainsinkhorn.apps.flow.matchers import __all__ as __all__
