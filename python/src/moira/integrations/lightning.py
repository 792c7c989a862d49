"""Lightning's ``Trainer`` under Moira.

    from moira.integrations.lightning import MoiraCallback, ckpt_path

    trainer = Trainer(max_steps=10_000, callbacks=[MoiraCallback()])
    trainer.fit(model, data, ckpt_path=ckpt_path())

Outside Moira all of this does nothing. The batch is what the data loader says: the number of examples on each device
stays the same when the job is given other devices. Within an epoch Lightning goes on in the middle of the data only
with loaders that have a state; others it begins anew, for the steps that are left of the epoch.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Optional

from lightning.pytorch import Callback, LightningModule, Trainer

from moira.integrations import _folders as folders
from moira.integrations._session import Session, Wish
from moira.interruption import Interruption, after_restart
from moira.interval import AUTO, Every, checked
from moira.job import Job

__all__ = ["MoiraCallback", "ckpt_path"]

_PREFIX = "lightning-"
_FILE = "state.ckpt"
#: The newest, and one more should its disk have lied.
_KEEP = 2


class MoiraCallback(Callback):
    """Reports steps, times, epoch and loss; saves from time to time and on notice; on a stop, saves and leaves.

    Checkpoints go to ``MOIRA_CHECKPOINT_DIR``, every ``save_every`` seconds, beside those that ``ModelCheckpoint``
    may write elsewhere: ``auto`` is as often as saving is cheap (about 1 % of the time), ``None`` is never. All
    workers stop after the same step. A stop that comes during validation is answered after it, so give the job a
    grace that is long enough (``checkpoint={"grace": "5m"}`` when it is submitted).

    ``local_batch`` is the number of examples of one pass on one worker; the data loader is asked if nothing is said.
    """

    def __init__(
        self, *, local_batch: Optional[int] = None, save_every: Every = AUTO, job: Optional[Job] = None
    ) -> None:
        super().__init__()
        self._job = job or Job.from_environment()
        self._local_batch = local_batch
        self._save_every = checked(save_every, "save_every")
        self._session: Optional[Session] = None
        self._interruption: Optional[Interruption] = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._job is not None and stage == "fit":
            self._interruption = after_restart(self._job)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._job is not None:
            self._session = Session(
                self._job,
                steps=trainer.global_step,
                local_batch=self._local_batch or _batch_size(trainer.train_dataloader),
                accumulation=trainer.accumulate_grad_batches - 1,
                resumed=Path(trainer.ckpt_path).parent if trainer.ckpt_path else None,
                interruption=self._interruption,
                save_every=self._save_every,
            )
            self._interruption = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._session is not None:
            self._session.step_began()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._session is None:
            return
        if trainer.global_step == self._session.steps:
            self._session.pass_ended()
            return
        wish = self._session.step_ended(epoch=float(trainer.current_epoch), loss=_loss(outputs))
        if wish is not Wish.GO_ON:
            self._save(trainer)
        if wish is Wish.STOP and not trainer.fit_loop.done:
            self._session.leave()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._session is not None:
            self._session.paused()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._session is not None:
            self._session.end()
            self._session = None

    def _save(self, trainer: Trainer) -> None:
        root = self._job.checkpoint_dir if self._job is not None else None
        if root is None or self._session is None:
            return
        began = time.monotonic()
        folder = root / f"{_PREFIX}{trainer.global_step}"
        trainer.save_checkpoint(folder / _FILE)
        self._session.saved(folder, time.monotonic() - began)
        if trainer.is_global_zero:
            folders.prune(root, _PREFIX, _KEEP)


def ckpt_path(job: Optional[Job] = None) -> Optional[str]:
    """The newest whole checkpoint of this job, for ``Trainer.fit(ckpt_path=...)``; nothing if there is none."""
    job = job or Job.from_environment()
    if job is None or job.checkpoint_dir is None:
        return None
    found = folders.newest(job.checkpoint_dir, _PREFIX)
    return str(found / _FILE) if found is not None else None


def _batch_size(loader: Any) -> Optional[int]:
    """Of a loader of the usual kind; nothing if there are several, or if it makes batches in its own way."""
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def _loss(outputs: Any) -> Optional[float]:
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    return None if loss is None else float(loss)
