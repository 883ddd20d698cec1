"""Where tests run Triton's kernels: on a CUDA device if there is one, in Triton's interpreter elsewhere (conftest)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.conftest import needs

torch = needs("torch")
CUDA = bool(torch.cuda.is_available())
DEVICE = "cuda" if CUDA else "cpu"
needs("triton")


def patch_language_once(interpreter: Any) -> None:
    """Let Triton's interpreter replace the functions of its language once for all.

    It searches the whole language for functions to replace at each launch, and again at each call of a device function.
    """
    language, scope = interpreter.tl, interpreter._LangPatchScope
    # Kernels call the language `tl`, and device functions of the language itself call it `core`.
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": language, "core": language.core}))
    interpreter._patch_lang = lambda _: scope()


def omit_unread_checks(interpreter: Any) -> None:
    """Omit the checks for integer overflow, which the interpreter computes and then ignores."""
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def look_up_dtypes(interpreter: Any) -> None:
    """Look up NumPy's dtype for a dtype of Triton; the interpreter builds a dictionary of all of them at every call."""
    build, known = interpreter._get_np_dtype, dict[str, Any]()

    def look_up(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in known:
            known[name] = build(dtype)
        return known[name]

    interpreter._get_np_dtype = look_up


def share_parts(kind: Any, own: tuple[str, ...], key: Callable[..., Any]) -> None:
    """Let objects of a kind with equal keys share their parts, but for those in `own`, which are the first argument."""
    build, known = kind.__init__, dict[Any, dict[str, Any]]()

    def initialize(self: Any, first: Any, second: Any) -> None:
        name = key(first, second)
        if name in known:
            self.__dict__.update(known[name], **dict.fromkeys(own, first))
        else:
            build(self, first, second)
            known[name] = {part: value for part, value in self.__dict__.items() if part not in own}

    kind.__init__ = initialize


def describe_types_once(interpreter: Any) -> None:
    """Describe each type, and the shape of tensors of a type, once, not for each tensor."""
    core = interpreter.tl.core
    share_parts(core.tensor, ("handle",), lambda _, dtype: dtype.name)
    share_parts(core.block_type, (), lambda dtype, shape: (dtype.name, *(getattr(n, "value", n) for n in shape)))


if not CUDA:
    from triton.runtime import interpreter

    for remove_overhead in (patch_language_once, omit_unread_checks, look_up_dtypes, describe_types_once):
        try:
            remove_overhead(interpreter)
        except AttributeError:
            continue  # another version of Triton, which has other parts: slower, and as right
