"""A service over HTTP whose clients share one device, and its client."""

from drainsinkhorn.serve.client import Remote as Remote
from drainsinkhorn.serve.client import RemoteError as RemoteError
from drainsinkhorn.serve.client import RemoteResult as RemoteResult
from drainsinkhorn.serve.limits import ServerLimits as ServerLimits
from drainsinkhorn.serve.server import Server as Server
