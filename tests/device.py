"""Where tests run Triton's kernels: on a CUDA device if there is one, in Triton's interpreter elsewhere.

Import this before anything that loads Triton, which looks at its environment once.
"""

from __future__ import annotations

import os

from tests.conftest import needs

torch = needs("torch")
CUDA = bool(torch.cuda.is_available())
DEVICE = "cuda" if CUDA else "cpu"
if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"
needs("triton")
