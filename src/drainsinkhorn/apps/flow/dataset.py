"""Coupled minibatches as a dataset of torch, which makes an epoch of any source of minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from drainsinkhorn.apps.flow.minibatches import Pairs
from drainsinkhorn.apps.flow.prefetch import COUPLED, CoupledBatches
from drainsinkhorn.apps.flow.sources import Minibatches
from drainsinkhorn.core.options import check_settings


class CouplingDataset(torch.utils.data.IterableDataset[Pairs]):
    """Coupled training batches, epoch after epoch: iterate over it, or over a DataLoader with `batch_size=None`.

    Every epoch reads the source anew and has draws of its own. A run is repeatable under `torch.manual_seed`: a
    DataLoader as source shuffles as it would by itself, and noise is drawn in the thread of the caller.

    Workers of an outer DataLoader share the minibatches: worker k of w takes every w-th, from the k-th on. All of them
    read the source with the same state of torch's generator, and their draws depend on the seed that the outer
    DataLoader draws.

    Args:
        source: Minibatches `(x0, x1)` or `(x0, x1, label)`: a DataLoader, a list, or a function (such as a generator
            function) that makes the minibatches of an epoch. An iterator serves for one epoch. A pair of loaders, of x0
            and of x1, stands for `noise` and `source`.
        noise: A function that draws x0 for given x1, such as `torch.randn_like`; the source then has minibatches `x1`,
            `(x1,)` or `(x1, label)`. Or a DataLoader, list or generator function of x0, read side by side with the
            source until one of them ends. None: minibatches hold x0.
        **settings: As for `CoupledBatches`.

    Examples:
        >>> digits = torch.utils.data.TensorDataset(torch.randn(512, 2) + 3, torch.randint(10, (512,)))
        >>> loader = torch.utils.data.DataLoader(digits, batch_size=64, shuffle=True)
        >>> sum(1 for x0, x1, label, converged in CouplingDataset(loader, noise=torch.randn_like, eps=0.5, window=4))
        8
    """

    def __init__(self, source: Any, *, noise: Any = None, **settings: Any) -> None:
        check_settings(settings.keys() - COUPLED, CouplingDataset)
        self.source, self.noise = source, noise
        self.settings = settings
        self._minibatches = Minibatches(source, noise)
        self._epoch = 0

    def __iter__(self) -> Iterator[Pairs]:
        """Yield the coupled pairs of one epoch."""
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            place, batches = (0, 0), self._minibatches.open()
        else:
            # A worker may be started anew for every epoch, and then only the loader's own seed differs between epochs.
            common = worker.seed - worker.id
            place = (worker.id + 1, common)
            batches = self._minibatches.open_share(worker.id, worker.num_workers, common)
        settings = {**self.settings, "seed": (self.settings.get("seed", 0), self._epoch, *place)}
        self._epoch += 1
        with CoupledBatches(batches, **settings) as coupled:
            yield from coupled
