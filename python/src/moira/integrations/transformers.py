"""Hugging Face's ``Trainer`` under Moira.

    from moira.integrations.transformers import MoiraCallback, output_dir, resume_from

    arguments = TrainingArguments(output_dir=output_dir("out"), ...)
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[MoiraCallback()])
    trainer.train(resume_from_checkpoint=resume_from(arguments))

Outside Moira all of this does nothing, and checkpoints are where the first line says. The batch is what the arguments
say: the number of examples on each device stays the same when the job is given other devices, so give it a range of
workers only if training may have another batch, or divide the batch by ``WORLD_SIZE`` yourself.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Optional, Union

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from moira.integrations import _folders as folders
from moira.integrations._session import Session, Wish
from moira.interruption import Interruption, after_restart
from moira.job import Job

__all__ = ["MoiraCallback", "output_dir", "resume_from"]

_PREFIX = "checkpoint-"


class MoiraCallback(TrainerCallback):
    """Reports steps, times, epoch and loss; saves on notice; on a stop, saves after the present step and leaves.

    All workers stop after the same step. A stop that comes during an evaluation is answered after it, so give the job a
    grace that is long enough (``checkpoint={"grace": "5m"}`` when it is submitted).
    """

    def __init__(self, job: Optional[Job] = None) -> None:
        self._job = job or Job.from_environment()
        self._session: Optional[Session] = None
        self._interruption: Optional[Interruption] = None
        self._is_stopping = False
        self._idle_since = 0.0

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._job is not None:
            self._interruption = after_restart(self._job)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._job is not None:
            self._is_stopping = False
            self._session = Session(
                self._job,
                steps=state.global_step,
                local_batch=args.train_batch_size,
                accumulation=args.gradient_accumulation_steps - 1,
                resumed=_folder(args, state) if state.global_step else None,
                interruption=self._interruption,
            )
            self._interruption = None

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._session is not None:
            self._session.step_began()

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._session is not None:
            self._session.pass_ended()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._session is None:
            return
        wish = self._session.step_ended(epoch=state.epoch)
        self._idle_since = time.monotonic()
        has_finished = state.global_step >= state.max_steps
        if wish is Wish.GO_ON or has_finished:
            return
        control.should_save = True
        if wish is Wish.STOP:
            self._is_stopping = True
            control.should_training_stop = True
            control.should_evaluate = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Optional[dict[str, Any]] = None,
        **kwargs: Any,
    ) -> None:
        if self._session is not None and logs is not None and "loss" in logs:
            self._session.report(loss=float(logs["loss"]))
            self._idle_since = time.monotonic()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._session is not None:
            self._session.paused()
            self._idle_since = time.monotonic()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._session is not None:
            # Nothing but saving has happened since: what else the trainer does between steps comes before it.
            self._session.saved(_folder(args, state), time.monotonic() - self._idle_since)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._session is not None:
            if self._is_stopping:
                self._session.leave()
            self._session.end()
            self._session = None


def output_dir(otherwise: Union[str, Path]) -> str:
    """Where checkpoints are found again by the next run: ``MOIRA_CHECKPOINT_DIR``; outside Moira what is said."""
    job = Job.from_environment()
    return str(job.checkpoint_dir if job is not None and job.checkpoint_dir is not None else otherwise)


def resume_from(where: Union[TrainingArguments, Job, str, Path, None] = None) -> Optional[str]:
    """The newest whole checkpoint, for ``Trainer.train(resume_from_checkpoint=...)``; nothing if there is none.

    It is looked for in the output folder of the arguments, in the job's folder, or in the one that is named; in that of
    the job that this process belongs to if nothing is said. One that was not finished, or has lost a part, is passed
    over.
    """
    root = _root(where if where is not None else Job.from_environment())
    found = folders.newest(root, _PREFIX, _is_whole) if root is not None else None
    return str(found) if found is not None else None


def _root(where: Union[TrainingArguments, Job, str, Path, None]) -> Optional[Path]:
    if where is None:
        return None
    if isinstance(where, Job):
        return where.checkpoint_dir
    return Path(where) if isinstance(where, (str, Path)) else Path(where.output_dir)


def _is_whole(folder: Path, steps: int) -> bool:
    """Whether a checkpoint of a trainer without our callback is whole: its state is what the trainer writes last."""
    try:
        state = json.loads((folder / "trainer_state.json").read_text())
        return bool(state["global_step"] == steps)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / f"{_PREFIX}{state.global_step}"
