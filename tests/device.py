"""Where tests run Triton's kernels: on a CUDA device if there is one, in Triton's interpreter elsewhere (conftest)."""

from __future__ import annotations

import dataclasses
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
    language, scope, semantic = interpreter.tl, interpreter._LangPatchScope, interpreter.interpreter_semantic
    # The functions of the language forbid calls outside of kernels; what they wrap need not be asked that every time.
    guard = language.core.load.__code__

    def patch_attribute(owner: Any, name: str, member: Any, _: Any, changes: Any) -> None:
        function = member.__wrapped__ if getattr(member, "__code__", None) is guard else member

        def call(*args: Any, **options: Any) -> Any:
            options["_semantic"] = semantic
            return function(*args, **options)

        changes.set_attr(owner, name, call)

    interpreter._patch_attr = patch_attribute
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


def describe_types_once(interpreter: Any) -> None:
    """Describe each type, and the shape of tensors of a type, once, not for each tensor."""
    core = interpreter.tl.core
    build_tensor, build_block = core.tensor.__init__, core.block_type.__init__
    tensors, blocks = dict[str, dict[str, Any]](), dict[Any, dict[str, Any]]()

    def initialize_tensor(self: Any, handle: Any, dtype: Any) -> None:
        parts = tensors.get(dtype.name)
        if parts is None:
            build_tensor(self, handle, dtype)
            tensors[dtype.name] = {name: part for name, part in self.__dict__.items() if name != "handle"}
        else:
            self.__dict__.update(parts)
            self.handle = handle

    def initialize_block(self: Any, dtype: Any, shape: Any) -> None:
        key = dtype.name, *[getattr(size, "value", size) for size in shape]
        parts = blocks.get(key)
        if parts is None:
            build_block(self, dtype, shape)
            blocks[key] = dict(self.__dict__)
        else:
            self.__dict__.update(parts)

    core.tensor.__init__, core.block_type.__init__ = initialize_tensor, initialize_block


def compare_identities_first(interpreter: Any) -> None:
    """Compare types and shapes part by part only if they are not the same object."""
    core = interpreter.tl.core

    def improve(kind: Any, yes: Any) -> None:
        compare = kind.__eq__
        kind.__eq__ = lambda self, other: yes if self is other else compare(self, other)

    improve(core.dtype, True)
    improve(core.tuple, core.constexpr(True))


if not CUDA:
    from triton.runtime import interpreter

    for remove_overhead in (
        patch_language_once,
        omit_unread_checks,
        look_up_dtypes,
        describe_types_once,
        compare_identities_first,
    ):
        try:
            remove_overhead(interpreter)
        except AttributeError:
            continue  # another version of Triton, which has other parts: slower, and as right
