"""A process that compiles Triton kernels into Triton's cache on disk; `compiling` starts it as a script.

It reads tasks from its standard input and answers each with a line. It imports Triton and the modules of kernels, but
neither torch nor the rest of the package, so that it starts soon.
"""

# pyright: basic

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

PACKAGE = "drainsinkhorn"
DONE, FAILED = "done", "failed"
"""Answers to a task."""


def read_specialisation(kernel: Any, text: str, backend: Any) -> tuple[Any, Any]:
    """Return the source and the options of a compiled form, from what Triton's JITFunction says for its `preload`."""
    from triton.compiler import ASTSource

    stated = json.loads(text)
    signature = {name: _as_tuples(kind) for name, kind in stated["signature"].items()}
    places, values = map(tuple, stated["constant_keys"]), map(_as_tuples, stated["constant_vals"])
    attributes = dict(zip(map(tuple, stated["attrs_keys"]), stated["attrs_vals"], strict=True))
    source = ASTSource(kernel, signature, dict(zip(places, values, strict=True)), attributes)
    return source, backend.parse_options({name: _as_tuples(value) for name, value in stated["options"].items()})


def _as_tuples(value: Any) -> Any:
    """Return lists of JSON as the tuples that they were."""
    if isinstance(value, dict):
        # Constants of other types than those of JSON; kernels here have none.
        raise TypeError(f"a constant is not a number: {value!r}")
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def compile_kernel(module: str, name: str, text: str, target: list[Any]) -> None:
    """Compile a form of a kernel, and its launcher, into Triton's cache."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import compile as compile_source
    from triton.compiler.compiler import make_backend

    chosen = GPUTarget(*target)
    source, options = read_specialisation(getattr(importlib.import_module(module), name), text, make_backend(chosen))
    launcher = threading.Thread(target=_compile_launcher, args=(source, chosen.backend))
    launcher.start()
    try:
        compile_source(source, target=chosen, options=options.__dict__)
    finally:
        launcher.join()


def _compile_launcher(source: Any, backend: str) -> None:
    """Compile the launcher of a signature, which up to Triton 3.6 is a program in C, into Triton's cache."""
    if backend != "cuda":
        return
    # What follows the compilation needs the metadata of the kernel. Later versions have one launcher for all.
    with suppress(Exception):
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(source, types.SimpleNamespace())


def serve() -> None:
    """Compile what the parent asks for until it closes the pipe."""
    # What libraries print must not be read as an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _name_packages(Path(__file__).parents[2])
    for line in sys.stdin:
        answer = DONE
        try:
            compile_kernel(*json.loads(line))
        except Exception as error:  # noqa: BLE001  the parent compiles it itself, and reports what is wrong
            answer = FAILED
            sys.stderr.write(f"{error!r}\n")
        answers.write(answer + "\n")
        answers.flush()


def _name_packages(folder: Path) -> None:
    """Declare the packages above the kernels without running what they import, which takes seconds."""
    for path in (folder, folder / "backends", folder / "backends" / "triton"):
        name = ".".join([PACKAGE, *path.relative_to(folder).parts])
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(path)]


if __name__ == "__main__":
    serve()
