"""Minibatches coupled as one batch of lanes, whole or class by class."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from drainsinkhorn.apps.flow.gathering import gather_list
from drainsinkhorn.apps.flow.problems import check_minibatch, problems_of
from drainsinkhorn.core.options import check_settings
from drainsinkhorn.model.brief import call
from drainsinkhorn.model.eps import Eps
from drainsinkhorn.model.errors import ConvergenceWarning, ProblemError
from drainsinkhorn.model.errors import warn as issue
from drainsinkhorn.model.status import Status
from drainsinkhorn.plans.consumers import sample
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.solve import solve

Tensor = torch.Tensor


class Pairs(NamedTuple):
    """Pairs drawn from the coupling of a minibatch.

    Attributes:
        x0: Source of each pair, (n, ...).
        x1: Target of each pair, (n, ...).
        label: Labels of the targets, (n,); None if the minibatch has none.
        converged: The share of this minibatch's problems that converged.
    """

    x0: Tensor
    x1: Tensor
    label: Tensor | None
    converged: float

    def __repr__(self) -> str:
        return call("Pairs", **self._asdict())


def cut_out(pairs: Pairs, part: slice) -> Pairs:
    """The pairs at these places."""
    return Pairs(pairs.x0[part], pairs.x1[part], None if pairs.label is None else pairs.label[part], pairs.converged)


class _Part(NamedTuple):
    """One problem of a minibatch.

    Attributes:
        batch: The number of the minibatch.
        rows: Indices of the problem's sources in the minibatch; None: all.
        cols: Indices of its targets; None: all.
        size: The number of sources, and of pairs to draw.
    """

    batch: int
    rows: Any
    cols: Any
    size: int


def couple_minibatches(
    batches: Sequence[Sequence[Any]],
    *,
    eps: Eps | Callable[[Tensor, Tensor], Eps] = None,
    by_class: bool = False,
    seed: int = 0,
    tol: float | None = None,
    warn: bool = True,
    group: Any = None,
    **settings: Any,
) -> list[Pairs]:
    """Couple minibatches `(x0, x1)` or `(x0, x1, label)` as one batch of lanes and draw as many pairs as x0 has points.

    Args:
        batches: Tensors (n, ...) and (m, ...); labels (m,).
        eps: A number in units of the squared distance, `relative`, `sharpness`, or a function of (x0, x1) that returns
            one of them. None: `relative(0.05)`. Every problem gets its own number.
        by_class: Couple within classes: targets of each label are coupled to their share of the sources (drawn at
            random; labels of sources, a fourth entry, decide if they are given), each class a lane of its own size.
            Sources whose class has no targets are left out, with a warning.
        seed: Together with the place of a minibatch it decides the draw.
        tol: Bound on the larger L1 marginal residual.
        warn: Warn if problems did not converge (their last states are used), or sources were left out.
        group: A group of torch.distributed, or "world" for all ranks. Every rank passes its own
            minibatches, as many as the others and with the same `eps` and `seed`. The k-th minibatches of all ranks are
            gathered and coupled as one, and each rank receives as many of its pairs as it has sources. None: this
            process couples alone.
        **settings: Keywords of `solve`.

    Examples:
        >>> batches = [(torch.randn(64, 2), torch.randn(64, 2) + 3) for _ in range(8)]
        >>> pairs = couple_minibatches(batches, eps=0.5)
        >>> len(pairs), tuple(pairs[0].x1.shape)
        (8, (64, 2))
    """
    check_settings(settings, couple_minibatches)
    if group is not None:
        gathered = gather_list(batches, group)
        joined = [each.batch for each in gathered]
        pairs = couple_minibatches(joined, eps=eps, by_class=by_class, seed=seed, tol=tol, warn=warn, **settings)
        return [cut_out(drawn, each.part_of(len(drawn.x0))) for drawn, each in zip(pairs, gathered, strict=True)]
    parts = [part for k, batch in enumerate(batches) for part in _parts(k, batch, by_class, seed)]
    pairs = [_points_of(batches[part.batch], part) for part in parts]
    strengths = [eps(*pair) if callable(eps) else eps for pair in pairs]
    problems = problems_of(pairs, strengths, backend=settings.get("backend"))
    solution = solve(problems, tol=tol, warn=False, **settings)
    for part, result in zip(parts, solution, strict=True):
        if result.status is Status.INVALID:
            raise ProblemError(f"minibatch {part.batch} cannot be coupled: {result.message}")
    if warn and not solution.converged:
        issue(_convergence_warning(solution))
    if warn and by_class:
        _warn_of_left_out(batches, parts)
    draws: list[list[_Draw]] = [[] for _ in batches]
    for part, (i, j), result in zip(parts, _draw(parts, solution, seed), solution, strict=True):
        draws[part.batch].append(_Draw(part, i, j, result.converged))
    return [_gather(batch, of_batch) for batch, of_batch in zip(batches, draws, strict=True)]


def _points_of(batch: Sequence[Any], part: _Part) -> tuple[Any, ...]:
    """Return the sources and targets that one problem of a minibatch couples."""
    return tuple(
        points if places is None else points[places]
        for points, places in zip(batch[:2], (part.rows, part.cols), strict=True)
    )


def _convergence_warning(solution: Solution[Any]) -> ConvergenceWarning:
    """Return a warning that counts the couplings that did not converge and states their largest residual."""
    failed = sum(count for status, count in solution.counts.items() if status is not Status.CONVERGED)
    worst = max(result.residual.worst for result in solution)
    return ConvergenceWarning(
        f"{failed} of {len(solution)} couplings did not converge (residual up to {worst:.2g}); their last "
        "states are used; raise eps or max_depth",
        solution,
    )


def _warn_of_left_out(batches: Sequence[Any], parts: Sequence[_Part]) -> None:
    """Warn of sources whose class has no targets, so that they cannot be coupled within it."""
    left_out = sum(len(batch[0]) for batch in batches) - sum(part.size for part in parts)
    if left_out:
        warnings.warn(
            f"{left_out} sources are of classes that have no targets in their minibatch and were left out; "
            "pass larger minibatches, or leave out the labels of sources",
            RuntimeWarning,
            stacklevel=3,
        )


class _Draw(NamedTuple):
    """Pairs drawn from the plan of one problem of a minibatch.

    Attributes:
        problem: Which sources and targets of the minibatch the problem couples.
        i: Index of the source of each pair, among the sources of the problem.
        j: Index of its target, among the targets of the problem.
        converged: Whether the problem converged.
    """

    problem: _Part
    i: Tensor
    j: Tensor
    converged: bool


def _draw(parts: Sequence[_Part], solution: Solution[Any], seed: int) -> list[tuple[Any, Any]]:
    """Indices (i, j) of the pairs of every part; parts of equal size are drawn together."""
    pairs: list[Any] = [None] * len(parts)
    for count in {part.size for part in parts}:
        places = [k for k, part in enumerate(parts) if part.size == count]
        for k, pair in zip(places, sample([solution[k] for k in places], count, seed=seed), strict=True):
            pairs[k] = pair
    return pairs


def _gather(batch: Sequence[Any], draws: Sequence[_Draw]) -> Pairs:
    """The pairs of all parts of a minibatch, in random order: classes must not come one after another."""
    rows = [draw.i if draw.problem.rows is None else draw.problem.rows[draw.i] for draw in draws]
    cols = [draw.j if draw.problem.cols is None else draw.problem.cols[draw.j] for draw in draws]
    (i, *_), (j, *_) = rows, cols
    if len(draws) > 1:
        i, j = torch.cat(rows), torch.cat(cols)
        order = torch.from_numpy(np.random.default_rng(len(i)).permutation(len(i))).to(i.device)
        i, j = i[order], j[order]
    label = batch[2] if len(batch) > 2 else None
    share = sum(draw.converged for draw in draws) / len(draws)
    x0, x1 = batch[0].index_select(0, i), batch[1].index_select(0, j)
    return Pairs(x0, x1, None if label is None else label[j], share)


def _parts(place: int, batch: Any, by_class: bool, seed: int) -> Iterator[_Part]:
    """The problems of a minibatch: one, or one for each class that sources and targets have in common."""
    check_minibatch(place, batch)
    count = len(batch[0])
    if not by_class:
        yield _Part(place, None, None, count)
        return
    if len(batch) < 3 or batch[2] is None:
        raise ProblemError(f"minibatch {place} has no labels; by_class needs (x0, x1, label)")
    target = batch[2]
    source = batch[3] if len(batch) > 3 else None
    source = _shares(target, count, (seed, place)) if source is None else source
    source = source.to(target.device)
    for points, labels, size in (("targets", target, len(batch[1])), ("sources", source, count)):
        if labels.shape != (size,):
            raise ProblemError(
                f"minibatch {place} has labels of shape {tuple(labels.shape)} for {size} {points}; pass one for each"
            )
    if not bool(torch.isin(source, target).any()):
        raise ProblemError(
            f"minibatch {place} has sources of the classes {source.unique().tolist()} and targets of "
            f"{target.unique().tolist()}, which have none in common; by_class couples within classes"
        )
    for name in target[torch.isin(target, source)].unique().tolist():
        rows, cols = (source == name).nonzero()[:, 0], (target == name).nonzero()[:, 0]
        yield _Part(place, rows, cols, len(rows))


def _shares(target: Tensor, count: int, seed: Any) -> Tensor:
    """Labels for `count` sources in the proportions of the targets, in random order."""
    names, sizes = target.cpu().unique(return_counts=True)
    ideal = sizes.double().numpy() * count / len(target)
    shares = np.floor(ideal).astype(int)
    # Sources that remain after rounding down go to the classes with the largest remainders.
    shares[np.argsort(shares - ideal, kind="stable")[: count - shares.sum()]] += 1
    labels = names.numpy().repeat(shares)
    return torch.from_numpy(np.random.default_rng(seed).permutation(labels))
