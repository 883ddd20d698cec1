"""Modules on the way of one problem: which modules of the package run between `solve` and the first Result.

    python benchmarks/modules_on_the_way.py                   # NumPy arrays, on the CPU
    python benchmarks/modules_on_the_way.py --functions       # with the functions that ran
    python benchmarks/modules_on_the_way.py --device cuda     # a CUDA tensor
    TRITON_INTERPRET=1 python benchmarks/modules_on_the_way.py --backend triton    # CUDA code without a GPU, slow

The script solves two problems of 6 x 5 points three times. Imports and compilation happen in the first two solves. The
third solve is profiled. A module is counted if a function of it runs, or if one of its classes is instantiated.
A profiler does not see compiled kernels, so calls of Numba kernels, and of functions that take a Triton kernel, are
recorded as well. A kernel may call kernels of other modules. Those modules are counted too, if the source of the kernel
names them; this is an upper bound.
"""

from __future__ import annotations

import argparse
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import numpy as np

import drainsinkhorn as ds

PACKAGE = "drainsinkhorn"
TARGET = 18
"""Largest number of modules that one reader should have to read."""
PYTHON, RECORD, KERNEL, NESTED = "functions", "named tuples only", "compiled kernels", "called by kernels only"
"""How a module takes part, from the strongest to the weakest way."""
NUMBA_KERNELS, TRITON_KERNELS = ("CPUDispatcher",), ("JITFunction", "InterpretedFunction")
"""Names of the classes of compiled functions."""
RECORDED = "recorded_source"
"""Attribute of a recording function: the Python function of the kernel that it replaces."""


class Way:
    """The modules of the package that run, in the order of first use.

    Attributes:
        names: For each module, the functions that ran, by the way in which the module takes part.
    """

    def __init__(self) -> None:
        self.names: dict[str, dict[str, list[str]]] = {}

    def enter(self, module: str | None, way: str, name: str) -> None:
        """Note that a function of a module ran."""
        if module is not None and (module == PACKAGE or module.startswith(f"{PACKAGE}.")):
            names = self.names.setdefault(module, {}).setdefault(way, [])
            if name not in names:
                names.append(name)

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """A profile function for `sys.setprofile`."""
        if event != "call":
            return
        code, module = frame.f_code, frame.f_globals.get("__name__", "")
        if module.startswith("namedtuple_"):
            # The constructor of a named tuple has a namespace of its own; its first argument is the class.
            made = frame.f_locals.get("_cls")
            self.enter(getattr(made, "__module__", None), RECORD, getattr(made, "__name__", ""))
        elif module.startswith(PACKAGE):
            self.enter(module, PYTHON, code.co_qualname)
            for argument in code.co_varnames[: code.co_argcount]:
                value = frame.f_locals.get(argument)
                if type(value).__name__ in TRITON_KERNELS:
                    self.enter_kernel(source_of(value))

    def enter_kernel(self, function: Any, way: str = KERNEL, seen: set[Any] | None = None) -> None:
        """Note a kernel, and the kernels that its source names."""
        seen = set() if seen is None else seen
        if function in seen:
            return
        seen.add(function)
        self.enter(function.__module__, way, function.__name__)
        names = function.__code__.co_names
        values = [function.__globals__.get(name) for name in names]
        modules = [value for value in values if isinstance(value, ModuleType) and value.__name__.startswith(PACKAGE)]
        values += [getattr(module, name, None) for module in modules for name in names]
        for value in values:
            nested = source_of(value)
            if nested is not None:
                self.enter_kernel(nested, NESTED, seen)


def source_of(value: Any) -> Any:
    """The Python function of a Numba or Triton kernel, or of a function that records its calls; else None."""
    if type(value).__name__ in NUMBA_KERNELS:
        return value.py_func
    if type(value).__name__ in TRITON_KERNELS:
        return value.fn
    return getattr(value, RECORDED, None)


@contextmanager
def recorded_kernels(way: Way) -> Iterator[None]:
    """Replace Numba kernels in all modules of the package by functions that record the call."""
    replaced: list[tuple[ModuleType, str, Any]] = []
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == PACKAGE]

    def recording(kernel: Any) -> Callable[..., Any]:
        @functools.wraps(kernel.py_func)
        def call(*args: Any) -> Any:
            way.enter_kernel(kernel.py_func)
            return kernel(*args)

        setattr(call, RECORDED, kernel.py_func)
        return call

    for module in modules:
        for name, value in list(vars(module).items()):
            if type(value).__name__ in NUMBA_KERNELS:
                replaced.append((module, name, value))
                setattr(module, name, recording(value))
    try:
        yield
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)


def measure(work: Callable[[], Any]) -> tuple[Way, Any]:
    """The modules that run while `work` runs, and what it returns."""
    way = Way()
    with recorded_kernels(way):
        # Threads that already exist are not profiled. The main thread takes part in everything that they do.
        threading.setprofile(way.profile)
        sys.setprofile(way.profile)
        try:
            returned = work()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return way, returned


def show(title: str, way: Way, *, functions: bool) -> None:
    """Print the modules of a way in the order of first use, and their number."""
    print(title)
    counts: dict[str, int] = dict.fromkeys((PYTHON, RECORD, KERNEL, NESTED), 0)
    for place, (module, names) in enumerate(way.names.items(), 1):
        strongest = next(kind for kind in counts if kind in names)
        counts[strongest] += 1
        print(f"{place:4d}  {module.removeprefix(f'{PACKAGE}.'):34s} {strongest}")
        if functions:
            print("      " + ", ".join(name for kind in counts for name in names.get(kind, ())))
    print(f"{len(way.names)} modules; " + ", ".join(f"{kind}: {count}" for kind, count in counts.items() if count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the points are")
    parser.add_argument("--backend", default="auto", help="a name of a backend")
    parser.add_argument("--functions", action="store_true", help="print the functions that ran, too")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    x: Any = rng.normal(size=(2, 6, 2))
    y: Any = rng.normal(size=(2, 5, 2))
    if given.device == "cuda":
        import torch

        x, y = (torch.as_tensor(points, dtype=torch.float32, device="cuda") for points in (x, y))

    def first_result() -> Any:
        return ds.solve(x, y, eps=0.5, backend=given.backend)[0]

    for _ in range(2):
        first_result().barycentric_map()
    way, result = measure(first_result)
    show("From solve to the first Result:", way, functions=given.functions)
    print(f"target: at most {TARGET}\n")
    consumer, _ = measure(result.barycentric_map)
    show("From the Result to its barycentric map:", consumer, functions=given.functions)
    more = [module for module in consumer.names if module not in way.names]
    print(f"{len(more)} of these are not on the way to the Result")


if __name__ == "__main__":
    main()
