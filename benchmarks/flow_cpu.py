"""The OT stage of flow matching on a CPU: drained couplings against torchcfm's sampler with POT, interleaved.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/flow_cpu.py               # generated clouds
    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/flow_cpu.py --data DIR    # leading components of images
    OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=2 python benchmarks/flow_cpu.py --threads 2   # both sides
    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/flow_cpu.py --matchers    # one minibatch at a time

torchcfm runs in float64 (in float32 POT's kernel underflows), as it is shipped (threshold 1e-9, at most 1,000
iterations) and with the loosest threshold whose plans have an audited residual of at most tol. Everything from
minibatches to pairs is timed, audits are not; times are the best of `--repeats`, per minibatch, by the clock and in CPU
seconds of the process, which a busy machine disturbs less (but threads that wait for work by spinning raise them).

With `--matchers` whole calls `sample_location_and_conditional_flow(x0, x1)` are timed, with tensors in float32 as users
have them: the entropic matcher with its defaults (tol 1e-3) against torchcfm's optimal transport matcher with its own
sinkhorn sampler, again as shipped and with the loosest threshold whose plans pass the audit (in float64 where no plan
in float32 passes it). Calls are interleaved one by one; times and ratios of neighbouring calls are medians.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ot
import torch
from torchcfm.conditional_flow_matching import ExactOptimalTransportConditionalFlowMatcher
from torchcfm.optimal_transport import OTPlanSampler

import drainsinkhorn as ds
from drainsinkhorn.apps.flow.problems import problems_of
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.flow import couple_minibatches
from drainsinkhorn.flow.matchers import EntropicOptimalTransportConditionalFlowMatcher
from drainsinkhorn.testing import marginal_errors

TOL = 1e-3
SHAPES = [(256, 2), (512, 2), (1024, 2), (256, 8), (1024, 8), (256, 500), (1024, 500)]
MATCHER_SHAPES = [(256, 2), (256, 784), (512, 50)]


def minibatches(n: int, d: int, count: int, data: Path | None) -> list[Any]:
    rng = np.random.default_rng([n, d])
    if data is None:
        centres = 2 * rng.normal(size=(8, d))
        target = [centres[rng.integers(8, size=n)] + rng.normal(size=(n, d)) for _ in range(count)]
    else:
        with np.load(data / "imagenet200_32px_pca500.npz") as stored:
            whole = stored["scores_q"][:, :d].astype(np.float64)
        target = [whole[rng.choice(len(whole), n, replace=False)] / whole.std(0) for _ in range(count)]
    return [(torch.randn(n, d), torch.tensor(y, dtype=torch.float32)) for y in target]


def drawn(sampler: Any, batches: list[Any]) -> list[Any]:
    """Pairs of every minibatch, as torchcfm's `sample_plan` draws them, but from costs in float64."""
    pairs = []
    for x0, x1 in batches:
        i, j = sampler.sample_map(sampler.get_map(x0.double(), x1.double()), len(x0))
        pairs.append((x0[i], x1[j]))
    return pairs


def audited(sampler: Any, batches: list[Any], dtype: Any = torch.float64) -> float:
    """The worst residual of the plans; POT's underflow, which torchcfm turns into a uniform plan, is infinite."""
    worst = 0.0
    for x0, x1 in batches:
        plan = np.asarray(sampler.get_map(x0.to(dtype), x1.to(dtype)), dtype=np.float64)
        errors = np.abs(plan.sum(0) - 1 / plan.shape[1]).sum(), np.abs(plan.sum(1) - 1 / plan.shape[0]).sum()
        worst = max(worst, np.inf if np.ptp(plan) == 0 else float(np.nan_to_num(max(errors), nan=np.inf)))
    return worst


def clocked(work: Any, count: int) -> Any:
    """Seconds per minibatch, by the clock and of the CPU."""
    begun, spent = time.perf_counter(), time.process_time()
    work()
    return np.array([time.perf_counter() - begun, time.process_time() - spent]) / count


def tuned(eps: float, batches: list[Any], dtype: Any = torch.float64) -> Any:
    sampler = OTPlanSampler("sinkhorn", reg=eps, warn=False)
    for loose in (16, 8, 4, 2, 1, 0.5, 0.25):
        threshold = loose * TOL / len(batches[0][0]) ** 0.5
        sampler.ot_fn = partial(ot.sinkhorn, reg=eps, stopThr=threshold, numItermax=100_000)
        if audited(sampler, batches, dtype) <= TOL:
            break
    return sampler


def measure(n: int, d: int, share: float, args: Any) -> dict[str, Any]:
    batches = minibatches(n, d, max(4, min(32, 2**22 // (n * n))), args.data)
    eps = share * float(np.mean([torch.cdist(*pair).square().mean() for pair in batches]))
    few, backend = batches[:3], CpuBackend(threads=args.threads)
    samplers = {"tuned": tuned(eps, few), "shipped": OTPlanSampler("sinkhorn", reg=eps, warn=False)}
    samplers = {name: sampler for name, sampler in samplers.items() if name in args.arms}
    best = {name: np.full(2, np.inf) for name in ("ours", *samplers)}
    for _ in range(args.repeats):
        work = partial(couple_minibatches, batches, eps=eps, tol=TOL, backend=backend)
        best["ours"] = np.minimum(best["ours"], clocked(work, len(batches)))
        for name, sampler in samplers.items():
            best[name] = np.minimum(best[name], clocked(partial(drawn, sampler, few), len(few)))
    residuals = {name: audited(sampler, few) for name, sampler in samplers.items()}
    problems = [ds.Problem(x=x0, y=x1, eps=eps) for x0, x1 in few]
    results = ds.solve(problems_of(few, [eps] * len(few), backend=backend), tol=TOL, backend=backend)
    residuals["ours"] = max(max(marginal_errors(p, r.potentials)) for p, r in zip(problems, results, strict=True))
    found: dict[str, Any] = {"n": n, "d": d, "eps": share, "threads": args.threads}
    for name, (clock, cpu) in best.items():
        found |= {f"{name}_ms": round(1000 * clock, 2), f"{name}_cpu_ms": round(1000 * cpu, 2)}
        found |= {f"{name}_residual": float(f"{residuals[name]:.2g}")}
    for name in samplers:
        clock, cpu = best[name] / best["ours"]
        found |= {f"over_{name}": round(clock, 1), f"over_{name}_cpu": round(cpu, 1)}
    return found


def measure_matchers(n: int, d: int, share: float, args: Any) -> dict[str, Any]:
    batches = minibatches(n, d, 8, args.data)
    eps = share * float(np.mean([torch.cdist(*pair).square().mean() for pair in batches]))
    samplers = {"tuned": tuned(eps, batches, torch.float32), "shipped": OTPlanSampler("sinkhorn", reg=eps, warn=False)}
    dtypes = {"ours": torch.float32, "tuned": torch.float32, "shipped": torch.float32}
    if audited(samplers["tuned"], batches, torch.float32) > TOL:
        # Its kernel underflows in float32, so users must pass float64.
        samplers["tuned"], dtypes["tuned"] = tuned(eps, batches), torch.float64
    matchers: dict[str, Any] = {"ours": EntropicOptimalTransportConditionalFlowMatcher(reg=eps)}
    for name in args.arms:
        matchers[name] = ExactOptimalTransportConditionalFlowMatcher()
        matchers[name].ot_sampler = samplers[name]
    given = {name: [(x0.to(dtypes[name]), x1.to(dtypes[name])) for x0, x1 in batches] for name in matchers}
    times: dict[str, list[Any]] = {name: [] for name in matchers}
    for place in range(args.repeats * len(batches)):
        for name, matcher in matchers.items():
            pair = given[name][place % len(batches)]
            times[name].append(clocked(partial(matcher.sample_location_and_conditional_flow, *pair), 1))
    solution = ds.solve(problems_of(batches, [eps] * len(batches)), tol=TOL)
    problems = [ds.Problem(x=x0, y=x1, eps=eps) for x0, x1 in batches]
    residuals = {name: audited(samplers[name], batches, dtypes[name]) for name in args.arms}
    residuals["ours"] = max(max(marginal_errors(p, r.potentials)) for p, r in zip(problems, solution, strict=True))
    found: dict[str, Any] = {"matcher": True, "n": n, "d": d, "eps": share, "threads": args.threads}
    for name, values in times.items():
        clock, cpu = 1000 * np.median(values, axis=0)
        found |= {f"{name}_ms": round(clock, 2), f"{name}_cpu_ms": round(cpu, 2)}
        found |= {f"{name}_residual": float(f"{residuals[name]:.2g}")}
    for name in args.arms:
        clock, cpu = np.median(np.divide(times[name], times["ours"]), axis=0)
        found |= {f"over_{name}": round(clock, 1), f"over_{name}_cpu": round(cpu, 1)}
    return found | {"tuned_dtype": str(dtypes["tuned"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--eps", type=float, nargs="*", default=[0.01, 0.005, 0.002], help="shares of the mean cost")
    parser.add_argument("--shapes", type=int, nargs="*", default=list(range(len(SHAPES))))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of both sides; set OMP_NUM_THREADS to it too")
    parser.add_argument("--arms", nargs="*", default=["tuned", "shipped"], help="of torchcfm")
    parser.add_argument("--matchers", action="store_true", help="time flow matchers, one minibatch at a time")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    for d in (2, 500):
        # Kernels are compiled before anything is timed.
        couple_minibatches(minibatches(64, d, 2, None), eps=float(d), backend=CpuBackend(threads=args.threads))
    shapes = MATCHER_SHAPES if args.matchers else [SHAPES[shape] for shape in args.shapes]
    for shape in shapes:
        for share in args.eps:
            measured = measure_matchers(*shape, share, args) if args.matchers else measure(*shape, share, args)
            print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
