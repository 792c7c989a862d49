"""A training under the scheduler: steps whose batch and workers follow its wishes, states that outlive every stop.

The user's loop stays as it is. All that Moira does happens between two batches, in the loader, and inside the
optimiser's step.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

import torch
from torch import nn
from torch.utils.data import DataLoader

from moira.interval import AUTO, checked
from moira.job import Job
from moira.training import loader as loaders
from moira.training.group import Group, Place
from moira.training.loop import Loop, Step
from moira.training.noise import NoiseEstimator
from moira.training.scaling import Rule

__all__ = ["Step", "Training"]


class Training:
    """One training, on one worker. Made by ``moira.init``."""

    def __init__(self, job: Optional[Job], backend: Optional[str], seed: int) -> None:
        self._job = job
        self._seed = seed
        self._place = _place(job)
        self.device = _device(job)
        self._backend = backend
        self._registered: Dict[str, Any] = {}
        self._listeners: List[Callable[[Step], None]] = []
        self._loop: Optional[Loop] = None
        if job is not None:
            job.watch_signals()

    @property
    def is_managed(self) -> bool:
        """Whether anything is to be done at all: outside Moira, alone, a script runs as it was written."""
        return self._job is not None or self._place.workers > 1

    def wrap(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader[Any],
        *,
        scaler: Optional[Any] = None,
        learning_rate: Union[str, Rule] = "auto",
        measure_noise: Optional[bool] = None,
        checkpoint_every: Union[float, str] = AUTO,
        ddp: Optional[Dict[str, Any]] = None,
    ) -> Tuple[nn.Module, torch.optim.Optimizer, Any]:
        """The three that make a loop, ready for any number of workers. See ``moira.wrap``."""
        if self._loop is not None:
            raise RuntimeError("moira.wrap was called before; one process trains one model")
        if checked(checkpoint_every, "checkpoint_every") is None:
            raise ValueError(f'checkpoint_every: expected a positive number of seconds or "{AUTO}", found None')
        if not self.is_managed:
            return model, optimizer, loader
        shuffles = loaders.check(loader)
        self._check_batch(loader)
        self._loop = Loop(
            job=self._job,
            place=self._place,
            group=Group(self._backend, self.device),
            seed=self._seed,
            model=model,
            optimizer=optimizer,
            scaler=scaler,
            loader=loader,
            shuffles=shuffles,
            most_workers=self._most_workers,
            learning_rate=learning_rate,
            measures=self.is_adaptive if measure_noise is None else measure_noise,
            checkpoint_every=checkpoint_every,
            ddp=ddp or {},
            registered=self._registered,
            listeners=self._listeners,
        )
        return self._loop.module, optimizer, self._loop.loader

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs still to be done of so many. With an adaptive batch an epoch is as much progress as a pass over
        the data brings at the designed batch size."""
        if self._loop is not None:
            yield from self._loop.epochs(count)
        elif self.is_managed:
            raise RuntimeError("call moira.wrap(model, optimizer, loader) before the first epoch")
        else:
            yield from range(count)

    def register(self, **states: Any) -> None:
        """What else is to be saved and restored, by name: anything with ``state_dict`` and ``load_state_dict``."""
        self._registered.update(states)
        if self._loop is not None:
            self._loop.restore_registered(states)

    def report(self, loss: Optional[Any] = None, **metrics: float) -> None:
        """The loss of the batch at hand, and whatever else is worth showing."""
        if loss is not None and self._loop is not None:
            self._loop.take_loss(loss)
        if metrics and self._job is not None:
            self._job.report(metrics={name: float(value) for name, value in metrics.items()})

    def on_step(self, listener: Callable[[Step], None]) -> None:
        """Calls this after every step, on every worker; outside Moira and torchrun there are no steps to tell of."""
        self._listeners.append(listener)

    @property
    def rank(self) -> int:
        """Of this worker, at present."""
        return self._place.rank

    @property
    def workers(self) -> int:
        """How many there are at present."""
        return self._place.workers

    @property
    def progress(self) -> float:
        """Steps of the designed batch that were done so far."""
        return self._loop.progress if self._loop is not None else 0.0

    @property
    def noise(self) -> Optional[NoiseEstimator]:
        """The gradient noise as estimated so far."""
        return self._loop.noise if self._loop is not None else None

    @property
    def is_adaptive(self) -> bool:
        """Whether the scheduler may choose the batch."""
        return self._job is not None and self._job.is_adaptive

    @property
    def _most_workers(self) -> int:
        """Of all it may ever have."""
        return max(self._place.workers, (self._job.max_workers if self._job is not None else None) or 1)

    def _check_batch(self, loader: DataLoader[Any]) -> None:
        said = self._job.batch if self._job is not None else None
        if said is not None and said != loader.batch_size:
            raise ValueError(
                f"the job was submitted with a designed batch of {said}, and the DataLoader has "
                f"batch_size={loader.batch_size}; both are the batch over all workers, so they must be the same"
            )
        if loader.batch_size is not None and loader.batch_size < self._most_workers:
            raise ValueError(
                f"the DataLoader has batch_size={loader.batch_size}, which {self._most_workers} workers cannot share: "
                "it is the batch over all workers; make it larger, or submit the job with fewer workers"
            )


def _place(job: Optional[Job]) -> Place:
    """The job's, or torchrun's, or alone."""
    if job is not None:
        return Place(job.rank, job.world_size, job.master_addr, job.master_port)
    environ = os.environ
    if "RANK" in environ and "WORLD_SIZE" in environ and "MASTER_PORT" in environ:
        address = environ.get("MASTER_ADDR", "127.0.0.1")
        return Place(int(environ["RANK"]), int(environ["WORLD_SIZE"]), address, int(environ["MASTER_PORT"]))
    return Place(0, 1, "127.0.0.1", 0)


def _device(job: Optional[Job]) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", job.local_rank if job is not None else int(os.environ.get("LOCAL_RANK", "0")))
