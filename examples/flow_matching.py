"""Flow matching of image features with independent, official-serial and drained couplings, same updates, paired seeds.

    python examples/flow_matching.py                       # handwritten digits, shipped with scikit-learn
    python examples/flow_matching.py --data DIR            # DIR/imagenet200_32px_pca500.npz

"Official" is what people run today, one minibatch after another: torchcfm's sampler with POT on a CPU (in float64, its
threshold as loose as the audited residual allows; the arm `official_shipped` has its own), FlashSinkhorn on a GPU.
"Drained" couples a window of minibatches as lanes of one batch. All arms see the same minibatches, times and weights.

Reported: seconds of the OT stage apart from those of training; curvature of generated paths (sum over steps of squared
changes of velocity, over the dimension), held-out flow-matching loss under a strict coupling, Frechet distance of the
leading 16 coordinates; and nine gates: drained over official at most 1.02, 1.01 and 1.10 at 4, 8 and 16 steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import drainsinkhorn as ds
from drainsinkhorn.flow import couple_minibatches
from drainsinkhorn.run.couple import couple
from drainsinkhorn.testing import marginal_errors
from drainsinkhorn_bench import peers

TOL, STEPS, MARGINS = 1e-3, (4, 8, 16), {"curvature": 1.02, "loss": 1.01, "frechet": 1.10}
PROJECTED = 16


def features(folder: Path | None) -> np.ndarray[Any, Any]:
    """Centred features whose mean variance is one."""
    if folder is not None:
        with np.load(folder / "imagenet200_32px_pca500.npz") as stored:
            found = stored["scores_q"].astype(np.float32) * stored["step"]
    else:
        from sklearn.datasets import load_digits

        found = load_digits().data.astype(np.float32)
        found = found + np.random.default_rng(0).uniform(-0.5, 0.5, size=found.shape).astype(np.float32)
    found = found - found.mean(0)
    if folder is None:
        # Pixels of digits are turned to principal components, as the other features are.
        found = found @ np.linalg.svd(found, full_matrices=False)[2].T
    return found / np.sqrt(found.var(0).mean())


def velocity(dim: int, hidden: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(dim + 1, hidden), torch.nn.SiLU(),
        torch.nn.Linear(hidden, hidden), torch.nn.SiLU(),
        torch.nn.Linear(hidden, hidden), torch.nn.SiLU(),
        torch.nn.Linear(hidden, dim),
    )  # fmt: skip


def settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


# Arms: minibatches in, pairs out.


def independent(batches: list[Any], eps: float, seed: int) -> list[Any]:
    return batches


def drained(batches: list[Any], eps: float, seed: int) -> list[Any]:
    return [pairs[:2] for pairs in couple_minibatches(batches, eps=eps, tol=TOL, seed=seed)]


class Official:
    """torchcfm and POT on a CPU."""

    def __init__(self, batches: list[Any], eps: float, *, tuned: bool = True) -> None:
        import ot
        from torchcfm.optimal_transport import OTPlanSampler

        self.sampler = OTPlanSampler("sinkhorn", reg=eps, warn=False)
        self.residual = float("nan")
        n = len(batches[0][0])
        for loose in (16, 8, 4, 2, 1) if tuned else ():
            # POT's threshold is on the L2 error of one side.
            threshold = loose * TOL / n**0.5
            self.sampler.ot_fn = partial(ot.sinkhorn, reg=eps, stopThr=threshold, numItermax=100_000)
            self.residual = max(self._residual(*batch) for batch in batches[:3])
            if self.residual <= TOL:
                break

    def _plan(self, x0: Any, x1: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.sampler.get_map(x0.double(), x1.double())

    def _residual(self, x0: Any, x1: Any) -> float:
        plan = self._plan(x0, x1)
        errors = [np.abs(plan.sum(axis) - 1 / size).sum() for axis, size in ((1, len(x0)), (0, len(x1)))]
        return float(np.nan_to_num(max(errors), nan=np.inf))

    def __call__(self, batches: list[Any], eps: float, seed: int) -> list[Any]:
        np.random.seed(seed)  # noqa: NPY002  torchcfm draws from NumPy's global generator
        found = []
        for x0, x1 in batches:
            i, j = self.sampler.sample_map(self._plan(x0, x1), len(x0))
            found.append((x0[i], x1[j]))
        return found


class Flash:
    """FlashSinkhorn in float32 on a GPU, checked on both sides every four cycles; pairs drawn from its potentials."""

    def __init__(self, batches: list[Any], eps: float) -> None:
        self.flash = peers.Flash(TOL)
        x0, x1 = batches[0]
        problem = ds.Problem(x=x0, y=x1, eps=eps)
        self.backend = ds.solve([problem])[0].backend
        self.residual = max(marginal_errors(problem, self.flash.one(problem)[0]))

    def __call__(self, batches: list[Any], eps: float, seed: int) -> list[Any]:
        found = []
        for k, (x0, x1) in enumerate(batches):
            problem = ds.Problem(x=x0, y=x1, eps=eps)
            ((i, j),) = couple(self.backend, [problem], [self.flash.one(problem)[0]]).sample(len(x0), [(seed, k)])
            found.append((x0[i], x1[j]))
        return found


def audited(batches: list[Any], eps: float) -> float:
    """Worst residual of drained couplings by the float64 auditor."""
    problems = [ds.Problem(x=x0, y=x1, eps=eps) for x0, x1 in batches]
    return max(
        max(marginal_errors(p, r.potentials)) for p, r in zip(problems, ds.solve(problems, tol=TOL), strict=True)
    )


class Run:
    """One arm with one seed: couplings, training, evaluation."""

    def __init__(self, args: Any, train: Any, held: Any, eps: float, seed: int) -> None:
        self.args, self.train, self.held, self.eps, self.seed = args, train, held, eps, seed
        self.dim = train.shape[1]

    def batches(self, window: int) -> list[Any]:
        """The minibatches of a window: the same for every arm."""
        size, found = self.args.batch, []
        for k in range(window * self.args.window, min((window + 1) * self.args.window, self.args.updates)):
            g = torch.Generator().manual_seed(10_000_000 * self.seed + k)
            at = torch.randint(len(self.train), (size,), generator=g)
            noise = torch.randn(size, self.dim, generator=g)
            found.append((noise.to(self.train.device), self.train[at.to(self.train.device)]))
        return found

    def __call__(self, arm: Any) -> dict[str, Any]:
        args, device = self.args, self.args.device
        torch.manual_seed(self.seed)
        model = velocity(self.dim, args.hidden).to(device)
        optimiser = torch.optim.Adam(model.parameters(), 1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, args.updates)
        times = torch.Generator().manual_seed(self.seed)
        coupling = training = 0.0
        for window in range(-(-args.updates // args.window)):
            batches = self.batches(window)
            settle(device)
            begun = time.perf_counter()
            pairs = arm(batches, self.eps, 1000 * self.seed + window)
            settle(device)
            coupling += time.perf_counter() - begun
            begun = time.perf_counter()
            for x0, x1 in pairs:
                t = torch.rand(len(x0), 1, generator=times).to(device)
                v = model(torch.cat([x0 + t * (x1 - x0), t], dim=1))
                loss = (v - (x1 - x0)).square().mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
            settle(device)
            training += time.perf_counter() - begun
        return {"coupling_s": coupling, "training_s": training, **self.judge(model)}

    @torch.no_grad()
    def judge(self, model: Any) -> dict[str, Any]:
        device, g = self.args.device, torch.Generator().manual_seed(77)
        noise = torch.randn(len(self.held), self.dim, generator=g).to(device)
        size = self.args.batch
        strict = list(zip(noise.split(size), self.held.split(size), strict=True))
        strict = [pair for pair in strict if len(pair[0]) == size]
        total = []
        for x0, x1, *_ in couple_minibatches(strict, eps=self.eps, tol=TOL / 10, seed=5):
            t = torch.rand(len(x0), 1, generator=g).to(device)
            total.append(float((model(torch.cat([x0 + t * (x1 - x0), t], dim=1)) - (x1 - x0)).square().mean()))
        found: dict[str, Any] = {"loss": float(np.mean(total)), "curvature": {}, "frechet": {}}
        for steps in STEPS:
            x, before, bent, path = noise, None, 0.0, [noise[:, :2]]
            for k in range(steps):
                v = model(torch.cat([x, torch.full_like(x[:, :1], k / steps)], dim=1))
                bent += 0.0 if before is None else float((v - before).square().sum(1).mean()) / self.dim
                x, before = x + v / steps, v
                path.append(x[:, :2])
            found["curvature"][steps] = bent
            found["frechet"][steps] = frechet(x, self.held)
        found["paths"] = torch.stack(path, dim=1)[:200].cpu().numpy()
        return found


def frechet(x: Any, y: Any) -> float:
    """Between Gaussians with the moments of the leading coordinates."""
    p, q = (v[:, :PROJECTED].double().cpu().numpy() for v in (x, y))
    (m, s), (n, t) = ((v.mean(0), np.cov(v.T)) for v in (p, q))
    values, vectors = np.linalg.eigh(s)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ t @ root), 0)).sum()
    return float(((m - n) ** 2).sum() + np.trace(s) + np.trace(t) - 2 * cross)


def gates(ours: list[Any], theirs: list[Any]) -> list[dict[str, Any]]:
    found = []
    for name, margin in MARGINS.items():
        for steps in STEPS:
            means = [
                np.mean([run[name] if name == "loss" else run[name][steps] for run in runs]) for runs in (ours, theirs)
            ]
            ratio = float(means[0] / means[1])
            found.append({"metric": name, "nfe": steps, "drained": float(means[0]), "official": float(means[1]),
                          "ratio": ratio, "margin": margin, "passed": ratio <= margin})  # fmt: skip
    return found


def draw(runs: dict[str, list[Any]], held: Any, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    arms = list(runs)
    figure, axes = plt.subplots(1, len(arms) + 2, figsize=(4 * (len(arms) + 2), 4), layout="constrained")
    low, high = np.quantile(np.concatenate([held[:, :2], runs[arms[0]][0]["paths"][:, 0]]), [0.005, 0.995], axis=0)
    reach = 0.05 * (high - low)
    for axis, arm in zip(axes, arms, strict=False):
        paths = runs[arm][0]["paths"]
        axis.scatter(*held[:1500, :2].T, s=3, color="0.8", label="held-out data")
        axis.plot(paths[:60, :, 0].T, paths[:60, :, 1].T, color="C0", lw=0.6, alpha=0.7)
        axis.scatter(*paths[:, 0].T, s=5, color="C2", label="noise")
        axis.scatter(*paths[:, -1].T, s=7, color="C3", label="generated")
        axis.set(title=f"{arm}: paths, 16 steps", xlabel="component 1", ylabel="component 2")
        axis.set(xlim=(low[0] - reach[0], high[0] + reach[0]), ylim=(low[1] - reach[1], high[1] + reach[1]))
    axes[0].legend(fontsize=7, loc="upper left")
    for arm in arms:
        bends = [np.mean([run["curvature"][s] for run in runs[arm]]) for s in STEPS]
        axes[-2].plot(STEPS, bends, marker="o", label=arm)
    axes[-2].set(title="curvature", xlabel="steps", xticks=STEPS, ylim=(0, None))
    axes[-2].legend()
    for key, color in (("coupling_s", "C1"), ("training_s", "0.7")):
        seconds = [np.mean([run[key] for run in runs[arm]]) for arm in arms]
        base = [np.mean([run["coupling_s"] for run in runs[arm]]) for arm in arms] if key == "training_s" else 0
        axes[-1].bar(arms, seconds, bottom=base, color=color, label=key[:-2])
    axes[-1].set(title="seconds of a run", ylabel="s")
    axes[-1].legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--window", type=int, default=32, help="minibatches that are coupled together")
    parser.add_argument("--eps", type=float, default=0.01, help="share of the mean cost")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--arms", nargs="*", default=["independent", "official", "drained"])
    parser.add_argument("--out", type=Path, default=Path("flow_matching.png"))
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    found = features(args.data)
    order = np.random.default_rng(0).permutation(len(found))
    held_size = min(2048, len(found) // 4)
    held, train = (torch.tensor(found[at]).to(args.device) for at in (order[:held_size], order[held_size:]))
    eps = args.eps * 2 * train.shape[1]
    probe = Run(args, train, held, eps, 0).batches(0)
    drained(probe[:2], eps, 0)  # Kernels are compiled before anything is timed.
    arms: dict[str, Any] = {"independent": independent, "drained": drained}
    report: dict[str, Any] = {"command": " ".join(sys.argv), "n": args.batch, "d": train.shape[1], "eps": eps}
    report["residual_drained"] = audited(probe[:3], eps)
    if "official" in args.arms:
        try:
            arms["official"] = (Flash if args.device == "cuda" else Official)(probe, eps)
            report["residual_official"] = arms["official"].residual
        except ImportError as error:
            print(f"no official arm: {error}", flush=True)
    if "official_shipped" in args.arms:
        arms["official_shipped"] = Official(probe, eps, tuned=False)
    runs: dict[str, list[Any]] = {arm: [] for arm in args.arms if arm in arms}
    for seed in range(args.seeds):
        run = Run(args, train, held, eps, seed)
        for arm in runs:
            runs[arm].append(run(arms[arm]))
            last = runs[arm][-1]
            print(f"seed {seed} {arm:>16}: OT {last['coupling_s']:.2f} s, training {last['training_s']:.2f} s, "
                  f"loss {last['loss']:.4f}, curvature {last['curvature'][8]:.4f}, frechet {last['frechet'][8]:.4f}",
                  flush=True)  # fmt: skip
    for arm, some in runs.items():
        report[arm] = {
            key: float(np.mean([run[key] for run in some])) for key in ("coupling_s", "training_s", "loss")
        } | {key: {s: float(np.mean([run[key][s] for run in some])) for s in STEPS} for key in ("curvature", "frechet")}
    if {"official", "drained"} <= set(runs):
        report["ot_speedup"] = report["official"]["coupling_s"] / report["drained"]["coupling_s"]
        report["gates"] = gates(runs["drained"], runs["official"])
        print(f"OT stage: official {report['official']['coupling_s']:.2f} s (audited residual "
              f"{report['residual_official']:.1e}), drained {report['drained']['coupling_s']:.2f} s "
              f"({report['residual_drained']:.1e}): {report['ot_speedup']:.1f} times faster")  # fmt: skip
        for gate in report["gates"]:
            print("{metric:>10} at {nfe:>2} steps: {drained:.4f} / {official:.4f} = {ratio:.4f} (at most {margin}) "
                  .format(**gate) + ("passed" if gate["passed"] else "FAILED"))  # fmt: skip
    draw(runs, held.cpu().numpy(), args.out)
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
