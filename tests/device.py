"""Where tests run Triton's kernels: on a CUDA device if there is one, in Triton's interpreter elsewhere (conftest)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tests.conftest import needs

torch = needs("torch")
CUDA = bool(torch.cuda.is_available())
DEVICE = "cuda" if CUDA else "cpu"
needs("triton")


def patch_language_once() -> None:
    """Let Triton's interpreter replace the functions of its language once a launch, not at every call in a kernel.

    For each call of a device function the interpreter searches the whole language for built-in functions, and finds
    them replaced already by the launch around it. The search takes a quarter of the time of these tests.
    """
    from triton.runtime import interpreter

    patch = getattr(interpreter, "_patch_lang", None)
    scope = getattr(interpreter, "_LangPatchScope", None)
    if patch is None or scope is None:
        return  # another version of Triton: slower, and as right

    def patch_at_launch(function: Any) -> Any:
        language = interpreter.tl
        only_tl = language.core not in [
            value for value in function.__globals__.values() if isinstance(value, ModuleType)
        ]
        if only_tl and not language.core.is_builtin(language.load):
            return scope()
        return patch(function)

    interpreter._patch_lang = patch_at_launch


if not CUDA:
    patch_language_once()
