"""For those who build backends: the contract as a suite, and a backend without arrays."""

from drainsinkhorn.testing.auditor import marginal_errors as marginal_errors
from drainsinkhorn.testing.bench import Bench as Bench
from drainsinkhorn.testing.contract import PROMISES as PROMISES
from drainsinkhorn.testing.contract import check_backend as check_backend
from drainsinkhorn.testing.scripted import Script as Script
from drainsinkhorn.testing.scripted import ScriptedBackend as ScriptedBackend
from drainsinkhorn.testing.scripted import scripted as scripted
