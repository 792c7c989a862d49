"""Moira in Python: make a PyTorch job elastic and adaptive, and speak to the service.

    import moira

    moira.init()
    model, optimizer, loader = moira.wrap(model, optimizer, loader)
    for epoch in moira.epochs(10):
        for batch in loader:
            ...  # as it was
            moira.report(loss=loss)

Outside Moira all of this does nothing, and the script runs as it was written. Importing the package needs nothing but
the standard library; PyTorch is imported when training begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Optional, Tuple, Union

from moira.checkpoint import CheckpointError, Checkpoints
from moira.job import STOPPED, Job, Tuning

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    from moira.client import (
        AsyncClient,
        AsyncJobHandle,
        Client,
        JobHandle,
        JobView,
        MoiraError,
        Problem,
        ServiceUnavailable,
    )
    from moira.training.scaling import AdamScale, AdaScale, Legw, Linear, Rule, SquareRoot
    from moira.training.session import Step, Training

__all__ = [
    "STOPPED",
    "AdaScale",
    "AdamScale",
    "AsyncClient",
    "AsyncJobHandle",
    "CheckpointError",
    "Checkpoints",
    "Client",
    "Job",
    "JobHandle",
    "JobView",
    "Legw",
    "Linear",
    "MoiraError",
    "Problem",
    "ServiceUnavailable",
    "SquareRoot",
    "Step",
    "Training",
    "Tuning",
    "current",
    "device",
    "epochs",
    "init",
    "on_step",
    "register",
    "report",
    "wrap",
]

_current: Optional[Training] = None

#: Names that are looked up where they are needed, so that importing this package stays cheap.
_ELSEWHERE = {
    "AsyncClient": "moira.client",
    "AsyncJobHandle": "moira.client",
    "Client": "moira.client",
    "JobHandle": "moira.client",
    "JobView": "moira.client",
    "MoiraError": "moira.client",
    "Problem": "moira.client",
    "ServiceUnavailable": "moira.client",
    "AdaScale": "moira.training.scaling",
    "AdamScale": "moira.training.scaling",
    "Legw": "moira.training.scaling",
    "Linear": "moira.training.scaling",
    "SquareRoot": "moira.training.scaling",
    "Step": "moira.training.session",
    "Training": "moira.training.session",
}


def init(*, backend: Optional[str] = None, seed: int = 0) -> Training:
    """Begins a training: once, before anything else of Moira. ``seed`` gives the order of the examples, and ``backend``
    the way gradients are exchanged: ``nccl`` where there are GPUs and ``gloo`` elsewhere, if nothing is said."""
    global _current
    if _current is not None:
        raise RuntimeError("moira.init was called before; one process belongs to one training")
    from moira.training.session import Training

    _current = Training(Job.from_environment(), backend, seed)
    return _current


def wrap(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    *,
    scaler: Optional[Any] = None,
    learning_rate: Union[str, Rule] = "auto",
    measure_noise: Optional[bool] = None,
    checkpoint_every: Union[float, str] = "auto",
    ddp: Optional[Dict[str, Any]] = None,
) -> Tuple[nn.Module, torch.optim.Optimizer, Any]:
    """Makes the three that make a loop ready for any number of workers and any batch.

    The ``batch_size`` of the loader is the one the training was designed for, over all workers. ``scaler`` is the
    GradScaler, if one is used. ``learning_rate`` says how the rate follows the batch: ``auto`` (AdaScale, or its square
    root for Adam and its kin), ``adascale``, ``adamscale``, ``linear``, ``sqrt`` or a rule such as ``moira.Legw(…)``.
    The gradient noise is measured where the batch may change, unless ``measure_noise`` says otherwise. States are saved
    every ``checkpoint_every`` seconds; ``auto`` is as often as saving is cheap: first after 10 seconds, then every 5
    seconds to 10 minutes, so that training is held up for about 1 % of the time. ``ddp`` holds further arguments for
    DistributedDataParallel.
    """
    return current().wrap(
        model,
        optimizer,
        loader,
        scaler=scaler,
        learning_rate=learning_rate,
        measure_noise=measure_noise,
        checkpoint_every=checkpoint_every,
        ddp=ddp,
    )


def epochs(count: int) -> Iterator[int]:
    """The epochs still to be done of so many, instead of ``range(count)``."""
    return current().epochs(count)


def register(**states: Any) -> None:
    """What else is to be saved and restored, by name, such as a learning-rate scheduler."""
    current().register(**states)


def report(loss: Optional[Any] = None, **metrics: float) -> None:
    """The loss of the batch at hand, and whatever else is worth showing."""
    current().report(loss, **metrics)


def on_step(listener: Callable[[Step], None]) -> None:
    """Calls this after every step, on every worker."""
    current().on_step(listener)


def device() -> torch.device:
    """Where this worker computes."""
    return current().device


def current() -> Training:
    """The training that was begun."""
    if _current is None:
        raise RuntimeError("call moira.init() first")
    return _current


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        from importlib import import_module

        return getattr(import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module 'moira' has no attribute {name!r}")
