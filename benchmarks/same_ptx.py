"""Compile the Triton kernels of two states of the library for an H200, and compare the PTX. It takes no GPU.

    git worktree add ../old COMMIT
    python benchmarks/same_ptx.py --old ../old/src
    python benchmarks/same_ptx.py --old ../old/src --only "euclidean*" --show 2

Both states solve the same problems in Triton's interpreter, and every launch is recorded: kernel, dtypes of arguments,
alignment, constants, options and grid. Other processes then compile each distinct launch to PTX. Compared are

- the PTX, without names of kernels and line numbers: equal PTX runs at equal speed, and gives equal bits;
- the sequences of launches: which PTX runs in which order, with which grids and integer arguments.

Neither names nor modules of kernels matter. A kernel whose PTX differs is listed with the number of its instructions.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import hashlib
import importlib
import json
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from states import State, serve

FUSION = {"TRITON_DEFAULT_FP_FUSION": "1"}
"""The default of Triton up to 3.9, said explicitly so that later releases compile alike."""
MODES = ("compact", "static", "mask")
LARGE = 1000
"""Points of a problem whose plan is not consumed: the interpreter would take minutes, for kernels that others use."""
OPTIONS = ("num_warps", "num_stages", "maxnreg")
"""Keywords of a launch that are options of the compiler, not constants of the kernel."""


def clouds(dim: int, eps: float, count: int = 2, n: int = 21, m: int = 18, dtype: str = "float32", **more: Any) -> Any:
    import torch

    import drainsinkhorn as ds

    rng = np.random.default_rng([dim, n, m])
    sides = [rng.normal(size=(count, size, dim)) for size in (n, m)]
    x, y = (torch.as_tensor(side).to(getattr(torch, dtype)) for side in sides)
    return [ds.Problem(x=x[lane], y=y[lane] + 0.3, eps=eps * (1 + lane), **more) for lane in range(count)]


def matrices(n: int = 20, m: int = 17) -> Any:
    import torch

    import drainsinkhorn as ds

    rng = np.random.default_rng([n, m])
    return [ds.Problem(cost=torch.as_tensor(rng.uniform(size=(n, m))).float(), eps=0.1) for _ in range(2)]


def cases() -> dict[str, Callable[[], None]]:
    """What is solved, by name."""
    kinds = {f"{dim} coordinates": (lambda dim=dim: clouds(dim, 0.3 * dim), {}) for dim in (1, 2, 3, 4, 10, 16, 20)}
    kinds |= {f"{dim} coordinates": (lambda dim=dim: clouds(dim, 0.3 * dim), {}) for dim in (32, 40, 62, 70)}
    kinds |= {
        "70 streamed": (lambda: clouds(70, 20.0), {"frugal": True}),
        "130 streamed": (lambda: clouds(130, 40.0), {"frugal": True, "leading": False}),
        "40 all products": (lambda: clouds(40, 12.0), {"leading": False}),
        "euclidean": (lambda: clouds(3, 0.4, cost="euclidean"), {}),
        "euclidean stored": (lambda: clouds(70, 4.0, cost="euclidean"), {}),
        "cosine": (lambda: clouds(5, 0.2, cost="cosine"), {}),
        "dense": (matrices, {}),
        "weights": (lambda: clouds(3, 1.0, a=np.arange(1, 22) / 231.0), {}),
        "float64 caller": (lambda: clouds(3, 1.0, dtype="float64"), {}),
        "float16 caller": (lambda: clouds(12, 3.0, dtype="float16"), {}),
        "gaussian starts": (lambda: clouds(70, 20.0, init="gaussian"), {}),
        "tight": (lambda: [*clouds(3, 0.6, tol=1e-9), *clouds(3, 1.0)], {}),
        "far": (lambda: [*clouds(12, 4e-3, tol=0.4), *clouds(12, 4.0)], {}),
        "far, few coordinates": (lambda: [*clouds(3, 1e-3, tol=0.4), *clouds(3, 1.0)], {}),
        "large": (lambda: clouds(3, 1.0, 1, n=2100), {}),
        "large, stored": (lambda: clouds(80, 30.0, 1, n=2100), {}),
        "unequal sizes": (lambda: [*clouds(10, 3.0), *clouds(10, 3.0, 1, n=70, m=130)], {}),
    }
    kinds |= {f"{name} in float64": (kinds[name][0], {"precision": "float64"}) for name in ("3 coordinates", "dense")}
    kinds |= {
        f"{name} in float64": (kinds[name][0], {"precision": "float64"}) for name in ("euclidean", "40 all products")
    }
    return {
        name: lambda make=make, settings=settings: run(make(), settings) for name, (make, settings) in kinds.items()
    }


def run(problems: list[Any], settings: dict[str, Any]) -> None:
    """Solve in several modes, plain and with momentum, and consume the plans."""
    import drainsinkhorn as ds
    from drainsinkhorn.backends.triton import TritonBackend

    # A method that every state of the library has, whatever the name of its limit.
    backend = TritonBackend(**{name: value for name, value in settings.items() if name != "frugal"})
    backend = backend.frugal() if "frugal" in settings else backend
    for mode in MODES:
        for accelerate in ("momentum", "none"):
            audit = ds.Audit(every=2, screen="row" if mode == "mask" else "free")
            how = {"mode": mode, "accelerate": accelerate, "audit": audit, "max_depth": 3, "rescue": False}
            solution = ds.solve(problems, backend=backend, warn=False, **how)
    if max(problems[0].x.shape if problems[0].x is not None else (0,)) > LARGE:
        return
    plans = backend.couple([r.instance for r in solution], [r.potentials for r in solution])
    for side in ("row", "col"):
        sizes = [r.instance.shape[1 if side == "row" else 0] for r in solution]
        for channels in (1, 20, 40):
            values = [np.random.default_rng(0).normal(size=(size, channels)) for size in sizes]
            plans.apply(values, side)
            plans.average(values, side)
        plans.log_ratios(side)
        plans.top_match(side)
        if problems[0].x is not None:
            plans.slopes(side)
    plans.transport_cost()
    plans.sample(5, [0] * len(problems))
    plans.partners([np.array([0, 2])] * len(problems), [0] * len(problems))


class Recorder:
    """Launches in Triton's interpreter.

    Attributes:
        specs: Distinct launches, each a list of JSON values, with their numbers.
        launches: Number of the launch, grid and integer arguments, in order.
    """

    def __init__(self) -> None:
        from triton.runtime.interpreter import InterpretedFunction

        self.specs: dict[str, tuple[int, Any]] = {}
        self.launches: list[Any] = []
        interpret = InterpretedFunction.run

        def record(kernel: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> Any:
            if not warmup:
                self._add(kernel, args, grid, constants)
            return interpret(kernel, *args, grid=grid, warmup=warmup, **constants)

        InterpretedFunction.run = record

    def _add(self, kernel: Any, args: Any, grid: Any, constants: dict[str, Any]) -> None:
        from triton.runtime.jit import mangle_type

        described = []
        for arg in args:
            kind = mangle_type(arg)
            if hasattr(arg, "data_ptr"):
                described.append([kind, "D" if arg.data_ptr() % 16 == 0 else ""])
            else:
                described.append(
                    ["i32" if kind == "constexpr" else kind, "1" if arg == 1 else "D" if arg % 16 == 0 else ""]
                )
        values = {name: getattr(value, "value", value) for name, value in constants.items()}
        spec = [kernel.fn.__module__, kernel.fn.__name__, described, values]
        number, _ = self.specs.setdefault(repr(spec), (len(self.specs), spec))
        self.launches.append([number, list(grid), [arg for arg in args if isinstance(arg, int)]])


def compile_ptx(spec: Any) -> str:
    """The PTX of a recorded launch for compute capability 9.0."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler import ASTSource, compile

    class Compiled(Exception):
        """Carries PTX out of the compiler, before it is assembled."""

    def add_stages(backend: Any, stages: Any, *more: Any) -> None:
        own_stages(backend, stages, *more)

        def leave(ptx: str, metadata: Any) -> bytes:
            raise Compiled(ptx)

        stages["cubin"] = leave

    module, name, args, values = spec
    kernel = getattr(importlib.import_module(module), name)
    constants, types, attributes = {}, {}, {}
    for place, ((kind, alignment), parameter) in enumerate(zip(args, kernel.params, strict=False)):
        pointer, free = kind.startswith("*"), parameter.do_not_specialize
        if alignment == "1" and not pointer and not free:
            types[parameter.name], constants[(place,)] = "constexpr", 1
            continue
        types[parameter.name] = kind
        if alignment == "D" and (pointer or not free):
            attributes[(place,)] = [["tt.divisibility", 16]]
    for parameter in kernel.params[len(args) :]:
        types[parameter.name] = "constexpr"
        constants[(parameter.num,)] = values[parameter.name]
    source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=attributes)
    options = {option: values[option] for option in OPTIONS if option in values}
    own_stages, CUDABackend.add_stages = CUDABackend.add_stages, add_stages
    try:
        compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    except Compiled as compiled:
        return strip_names(str(compiled), name)
    finally:
        CUDABackend.add_stages = own_stages
    raise AssertionError("the compiler ended before it was stopped")


def strip_names(ptx: str, kernel: str) -> str:
    """PTX without the name of the kernel, comments, line numbers and debug sections."""
    ptx = re.sub(rf"\b{re.escape(kernel)}(?=\b|_param)", "KERNEL", ptx)
    ptx = re.sub(r"//.*", "", ptx)
    lines = (line.rstrip() for line in ptx.split(".section")[0].splitlines())
    return "\n".join(line for line in lines if line.strip() and not re.match(r"\s*\.(loc|file)\b", line))


def instructions(ptx: str) -> int:
    """The number of instructions of a kernel."""
    return sum(line.rstrip().endswith(";") and not line.lstrip().startswith(".") for line in ptx.splitlines())


def answer_for(only: str) -> Callable[[dict[str, Any]], Any]:
    """Record cases, or compile launches."""
    state: dict[str, Any] = {}

    def answer(request: dict[str, Any]) -> Any:
        if "specs" in request:
            return [compile_ptx(spec) for spec in request["specs"]]
        recorder = state.setdefault("recorder", None) or Recorder()
        state["recorder"] = recorder
        recorder.launches = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            listed = cases()
            if "case" not in request:
                return [name for name in listed if fnmatch.fnmatchcase(name, f"*{only}*")]
            with np.errstate(all="ignore"):
                listed[request["case"]]()
        return {"launches": recorder.launches, "specs": [spec for _, spec in recorder.specs.values()]}

    return answer


class Tree:
    """A state of the library: its launches by case, and the PTX of each distinct one."""

    def __init__(self, source: str, only: str) -> None:
        recording = State(__file__, source, ["--serve", "--only", only], {"TRITON_INTERPRET": "1"})
        self.launches, self.specs = dict[str, Any](), list[Any]()
        for name in recording.ask({}):
            begun = time.perf_counter()
            found = recording.ask({"case": name})
            print(f"{time.perf_counter() - begun:8.1f} s  {name}", file=sys.stderr, flush=True)
            self.launches[name], self.specs = found["launches"], found["specs"]
        recording.close()
        compiling = State(
            __file__, source, ["--serve"], {"TRITON_INTERPRET": "0", "TRITON_DISABLE_LINE_INFO": "1", **FUSION}
        )
        self.ptx = compiling.ask({"specs": self.specs})
        compiling.close()

    @classmethod
    def kept(cls, source: str, only: str, file: str | None) -> Tree:
        """Read a state from a file that an earlier run wrote, or write that file."""
        if file is None or not Path(file).exists():
            tree = cls(source, only)
            if file is not None:
                Path(file).write_text(json.dumps(vars(tree)))
            return tree
        tree = cls.__new__(cls)
        vars(tree).update(json.loads(Path(file).read_text()))
        tree.launches = {name: each for name, each in tree.launches.items() if fnmatch.fnmatchcase(name, f"*{only}*")}
        return tree

    def sequence(self, case: str) -> Iterator[tuple[str, Any, Any]]:
        """Hash of the PTX, grid and integers of every launch of a case."""
        for number, grid, integers in self.launches[case]:
            yield hashlib.sha256(self.ptx[number].encode()).hexdigest(), grid, integers

    def name(self, number: int) -> str:
        module, kernel, _, values = self.specs[number]
        return f"{module.rpartition('.')[2]}.{kernel}({', '.join(f'{name}={value}' for name, value in values.items())})"


def compare(old: Tree, new: Tree, show: int) -> int:
    """Print what differs, and return the number of differences."""
    ours, theirs = set(new.ptx), set(old.ptx)
    changed = [number for number, ptx in enumerate(new.ptx) if ptx not in theirs]
    launched = {number for each in old.launches.values() for number, *_ in each}
    gone = [number for number, ptx in enumerate(old.ptx) if ptx not in ours and number in launched]
    kernels = {tuple(spec[:2]) for spec in old.specs}
    print(f"old: {len(kernels)} kernels, {len(old.specs)} distinct launches, {len(theirs)} distinct PTX")
    kernels = {tuple(spec[:2]) for spec in new.specs}
    print(f"new: {len(kernels)} kernels, {len(new.specs)} distinct launches, {len(ours)} distinct PTX")
    for number in changed:
        print(f"  DIFFERENT {new.name(number)}: {instructions(new.ptx[number])} instructions")
    for number in gone:
        print(f"  only in the old state: {old.name(number)}: {instructions(old.ptx[number])} instructions")
    for one, other in list(zip(gone, changed, strict=False))[:show]:
        lines = difflib.unified_diff(old.ptx[one].splitlines(), new.ptx[other].splitlines(), lineterm="", n=1)
        print("\n".join(list(lines)[:80]))
    differing = [case for case in old.launches if list(old.sequence(case)) != list(new.sequence(case))]
    for case in differing:
        counts = [len(tree.launches[case]) for tree in (old, new)]
        print(f"  sequences of launches differ: {case}, {counts[0]} launches -> {counts[1]}")
    launches = sum(map(len, new.launches.values()))
    print(f"{launches} launches in {len(new.launches)} cases")
    return len(changed) + len(gone) + len(differing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", help="folder with the package of the old state")
    parser.add_argument("--new", default=str(Path(__file__).parent.parent / "src"), help="that of the new state")
    parser.add_argument(
        "--kept", metavar="FILE", help="file from which the old state is read, or to which it is written"
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name contains this")
    parser.add_argument("--show", type=int, default=0, help="PTX of so many differing kernels is compared line by line")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(answer_for(asked.only))
        return
    if asked.old is None:
        parser.error("--old is missing: the source folder of the state to compare with")
    begun = time.perf_counter()
    old = Tree.kept(asked.old, asked.only, asked.kept)
    failed = compare(old, Tree(asked.new, asked.only), asked.show)
    print(f"({time.perf_counter() - begun:.0f} s)")
    print("all PTX and all launches are equal" if not failed else f"{failed} DIFFERENCES")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
