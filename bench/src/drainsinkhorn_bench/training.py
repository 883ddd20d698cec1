"""Flow matching with couplings: windows of minibatches in, a trained velocity field and its quality out.

Solver, sampling and training steps are timed apart; making minibatches is outside. All arms see the same minibatches,
times and first weights. Quality is as in the paper: curvature of generated paths, held-out loss under a strict
coupling, and Frechet distance of the leading coordinates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.run.couple import couple as plans_of
from drainsinkhorn.run.solve import solve
from drainsinkhorn_bench.arms import answers_of, backend_of, one_thread, problem
from drainsinkhorn_bench.loaders import Array
from drainsinkhorn_bench.plan import Place

STEPS = (4, 8, 16)
MARGINS = {"curvature": 1.02, "loss": 1.01, "frechet": 1.10}
"""What a ratio to the public arm may be at most: the paper's margins."""
PROJECTED = 16
STRICT = 1e-4

Couple = Callable[[Sequence[Problem[Any]]], Sequence[Potentials[Any]]]
"""Potentials of the problems of a window, in the convention of this library."""
Quality = dict[str, dict[int, float]]
"""Metric, then steps, to its value."""


class Trained(NamedTuple):
    """The result of a training run.

    Attributes:
        solving: Seconds in which potentials were computed.
        sampling: Seconds in which pairs were drawn from the plans.
        stepping: Seconds of the training steps.
        model: The network.
    """

    solving: float
    sampling: float
    stepping: float
    model: Any


@dataclass(frozen=True)
class Lesson:
    """What all arms train on, for one seed.

    Attributes:
        train: Features to learn.
        held: Features kept back.
        batch: Points of a minibatch.
        window: Minibatches that are coupled together.
        updates: Training steps.
        eps: As a share of the mean cost.
        hidden: Width of the network.
        seed: Of minibatches, weights and draws.
        device: Where.
    """

    train: Array
    held: Array
    batch: int
    window: int
    updates: int
    eps: float
    hidden: int
    seed: int
    device: str

    def minibatch(self, k: int) -> tuple[Array, Array]:
        """Noise and features of update k."""
        rng = np.random.default_rng([self.seed, 17, k])
        y = self.train[rng.choice(len(self.train), self.batch, replace=False)]
        return rng.normal(size=y.shape).astype(np.float32), y

    def problems(self, first: int, count: int) -> list[Problem[Any]]:
        """The problems of some updates."""
        return [problem(*self.minibatch(k), self.eps, self.device) for k in range(first, first + count)]

    def run(self, couple: Couple, place: Place) -> Trained:
        """Train with couplings made by an arm."""
        with one_thread(self.device):
            return self._run(couple, place)

    def _run(self, couple: Couple, place: Place) -> Trained:
        import torch

        clock, backend = place.clock, backend_of(self.device)
        torch.manual_seed(self.seed)
        model = velocity(self.train.shape[1], self.hidden).to(self.device)
        optimiser = torch.optim.Adam(model.parameters(), 1e-3)
        times = torch.Generator().manual_seed(self.seed)
        solving = sampling = stepping = 0.0
        for first in range(0, self.updates, self.window):
            problems = self.problems(first, self.window)
            batches = [
                [torch.as_tensor(p).to(self.device) for p in self.minibatch(first + k)] for k in range(self.window)
            ]
            begun = clock()
            answers = couple(problems)
            solved = clock()
            drawn = plans_of(backend, problems, answers).sample(
                self.batch, [(self.seed, first + k) for k in range(self.window)]
            )
            sampled = clock()
            for (x0, x1), (i, j) in zip(batches, drawn, strict=True):
                at = [torch.as_tensor(side).to(self.device) for side in (i, j)]
                step(model, optimiser, x0[at[0]], x1[at[1]], torch.rand(self.batch, 1, generator=times).to(self.device))
            stepping += clock() - sampled
            solving, sampling = solving + solved - begun, sampling + sampled - solved
        return Trained(solving, sampling, stepping, model)

    def judged(self, model: Any) -> Quality:
        """The quality of a model: the same noise and held-out couplings for all."""
        import torch

        rng = np.random.default_rng(77)
        noise = torch.as_tensor(rng.normal(size=self.held.shape).astype(np.float32)).to(self.device)
        held = torch.as_tensor(self.held).to(self.device)
        with torch.no_grad(), one_thread(self.device):
            found: Quality = {"curvature": {}, "loss": {}, "frechet": {}}
            loss = self._strict_loss(model, noise, held, rng)
            for steps in STEPS:
                x, before, bent = noise, None, 0.0
                for k in range(steps):
                    v = model(torch.cat([x, torch.full_like(x[:, :1], k / steps)], dim=1))
                    bent += 0.0 if before is None else float((v - before).square().mean())
                    x, before = x + v / steps, v
                found["curvature"][steps], found["loss"][steps] = bent, loss
                found["frechet"][steps] = frechet(x.cpu().numpy(), self.held)
        return found

    def _strict_loss(self, model: Any, noise: Any, held: Any, rng: np.random.Generator) -> float:
        import torch

        size, losses = self.batch, list[float]()
        starts = range(0, len(held) - size + 1, size)
        given = [
            problem(noise[k : k + size].cpu().numpy(), self.held[k : k + size], self.eps, self.device) for k in starts
        ]
        answers = answers_of(solve(given, tol=STRICT, backend=backend_of(self.device)))
        plans = plans_of(backend_of(self.device), given, [answers[k] for k in range(len(given))])
        for k, (i, j) in zip(starts, plans.sample(size, [(5, k) for k in starts]), strict=True):
            i, j = (torch.as_tensor(side).to(self.device) for side in (i, j))
            x0, x1 = noise[k : k + size][i], held[k : k + size][j]
            t = torch.as_tensor(rng.random((size, 1)).astype(np.float32)).to(self.device)
            losses.append(float((model(torch.cat([x0 + t * (x1 - x0), t], dim=1)) - (x1 - x0)).square().mean()))
        return float(np.mean(losses))


def velocity(dim: int, hidden: int) -> Any:
    """A network of three hidden layers."""
    import torch

    sizes = [dim + 1, hidden, hidden, hidden]
    layers = [part for a, b in itertools.pairwise(sizes) for part in (torch.nn.Linear(a, b), torch.nn.SiLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(hidden, dim))


def step(model: Any, optimiser: Any, x0: Any, x1: Any, t: Any) -> None:
    """One update of flow matching."""
    import torch

    v = model(torch.cat([x0 + t * (x1 - x0), t], dim=1))
    loss = (v - (x1 - x0)).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def frechet(x: Array, y: Array) -> float:
    """Between Gaussians with the moments of the leading coordinates."""
    p, q = (points[:, :PROJECTED].astype(np.float64) for points in (x, y))
    (m, s), (n, t) = ((points.mean(0), np.cov(points.T)) for points in (p, q))
    values, vectors = np.linalg.eigh(s)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ t @ root), 0)).sum()
    return float(((m - n) ** 2).sum() + np.trace(s) + np.trace(t) - 2 * cross)


def gates_nine(ours: Sequence[Quality], public: Sequence[Quality]) -> list[dict[str, Any]]:
    """Three metrics at three numbers of steps: means over seeds, their ratio, and whether it is within its margin."""
    found = list[dict[str, Any]]()
    for metric, margin in MARGINS.items():
        for steps in STEPS:
            mine, theirs = (float(np.mean([each[metric][steps] for each in some])) for some in (ours, public))
            found.append({
                "metric": metric, "nfe": steps, "complete": mine, "public": theirs, "ratio": mine / theirs,
                "margin": margin, "passed": mine / theirs <= margin,
            })  # fmt: skip
    return found
