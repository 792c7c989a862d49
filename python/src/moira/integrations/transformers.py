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
import logging
import time
from pathlib import Path
from typing import Any, Mapping, Optional, Union

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from moira.integrations import _folders as folders
from moira.integrations._session import Session, Wish
from moira.interruption import Interruption, after_restart
from moira.interval import AUTO, Every, checked
from moira.job import Job

__all__ = ["MoiraCallback", "output_dir", "resume_from"]

log = logging.getLogger(__name__)

_PREFIX = "checkpoint-"
#: Of those that only the callback asked for. The trainer does not know this name, so its rotation leaves them alone.
_EXTRA = "moira-checkpoint-"
#: The newest, and one more should its disk have lied.
_KEEP = 2
#: While the trainer writes one of them: no checkpoint of its own makes room for it, and it is not sent anywhere.
_FOR_EXTRA = {"save_total_limit": None, "push_to_hub": False}
#: From the save of a stop to the end: the trainer would remove all but the best checkpoint, and load that one.
_FOR_STOP = {"save_total_limit": None, "load_best_model_at_end": False}


class MoiraCallback(TrainerCallback):
    """Reports steps, times, epoch and loss; saves from time to time and on notice; on a stop, saves after the present
    step and leaves.

    Besides the checkpoints that the arguments ask for there is one every ``save_every`` seconds: ``auto`` is as often
    as saving is cheap (about 1 % of the time), ``None`` is never. The newest two of these are kept, under a name of
    their own (``moira-checkpoint-N``), which ``resume_from`` finds; the trainer's own checkpoints and
    ``save_total_limit`` are not affected. None is added while the disk has less room than two checkpoints need, and
    none with ``save_only_model``, since training could not go on from them. A callback that asks for checkpoints itself
    should come before this one.

    All workers stop after the same step. A stop that comes during an evaluation is answered after it, so give the job a
    grace that is long enough (``checkpoint={"grace": "5m"}`` when it is submitted).
    """

    def __init__(self, job: Optional[Job] = None, *, save_every: Every = AUTO) -> None:
        self._job = job or Job.from_environment()
        self._save_every = checked(save_every, "save_every")
        self._session: Optional[Session] = None
        self._interruption: Optional[Interruption] = None
        self._is_stopping = False
        self._idle_since = 0.0
        #: A save was asked for and has not happened: an evaluation after the same step may decide otherwise.
        self._is_owed = False
        #: What the arguments say of checkpoints, while they say something else.
        self._said: Optional[dict[str, Any]] = None
        #: The extra checkpoint that was begun and is not sealed yet.
        self._begun: Optional[Path] = None
        #: There may be extra checkpoints that still have the trainer's name.
        self._is_untidy = False

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._job is not None:
            self._interruption = after_restart(self._job)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._job is not None:
            # The run before may have been killed between a save and the renaming. Not yet: this run may be loading it.
            self._is_stopping, self._is_owed, self._is_untidy = False, False, True
            resumed = _resumed(args, state) if state.global_step else None
            if self._job.rank == 0:
                # All workers have chosen what to load: they have met since. None of them saves before the first step.
                folders.remove_unfinished(Path(args.output_dir), _PREFIX, keep=resumed)
            self._session = Session(
                self._job,
                steps=state.global_step,
                local_batch=args.train_batch_size,
                accumulation=args.gradient_accumulation_steps - 1,
                resumed=resumed,
                interruption=self._interruption,
                save_every=self._interval(args),
                has_room=lambda: folders.has_room(Path(args.output_dir), (_PREFIX, _EXTRA)),
            )
            self._interruption = None

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._put_back(args)
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
        # All workers have just met, so none of them is busy with the latest checkpoint any more.
        self._tidy(args)
        self._idle_since = time.monotonic()
        has_finished = state.global_step >= state.max_steps
        if has_finished or (wish is Wish.GO_ON and not self._is_owed):
            return
        if wish is Wish.STOP:
            self._is_stopping = True
            control.should_training_stop = True
            control.should_evaluate = False
        elif not control.should_save:
            self._say_instead(args, _FOR_EXTRA)
            self._begin_extra(_folder(args, state))
        control.should_save = self._is_owed = True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._is_stopping:
            # The trainer asks for what is due after an epoch, though this one was left in the middle.
            control.should_evaluate, control.should_save = False, self._is_owed
        else:
            self._put_back(args)

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
        if getattr(args, "metric_for_best_model", None) is not None:
            # What is saved now may be the best, and then it is the trainer's own.
            self._end_extra()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._session is None:
            return
        folder = _folder(args, state)
        was_asked_for = self._said is None or self._is_stopping
        # One that turns out to be the best is the trainer's own.
        is_extra = not was_asked_for and Path(state.best_model_checkpoint or "") != folder
        # Nothing but saving has happened since: what else the trainer does between steps comes before it.
        self._session.saved(folder, time.monotonic() - self._idle_since, is_extra=is_extra)
        self._put_back(args)
        if self._is_stopping:
            # Not before: up to here the trainer kept to its limit.
            self._say_instead(args, _FOR_STOP)
        self._is_owed = False
        # Not yet: callbacks that come after this one may look for it.
        self._is_untidy = self._is_untidy or is_extra

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._put_back(args)
        if self._session is not None:
            self._tidy(args)
            if self._is_stopping:
                self._session.leave()
            self._session.end()
            self._session = None

    def _interval(self, args: TrainingArguments) -> Every:
        if not getattr(args, "save_only_model", False):
            return self._save_every
        if self._save_every is not None:
            log.warning("save_only_model is set: training cannot go on from such checkpoints, so none are added")
        return None

    def _say_instead(self, args: TrainingArguments, values: Mapping[str, Any]) -> None:
        self._said = {name: getattr(args, name) for name in values}
        _set(args, values)

    def _put_back(self, args: TrainingArguments) -> None:
        """The arguments are again what they were, and no extra checkpoint is being written."""
        said, self._said = self._said, None
        _set(args, said or {})
        self._end_extra()

    def _begin_extra(self, folder: Path) -> None:
        if self._job is not None and self._job.rank == 0:
            self._begun = folder
            folders.begin(folder)

    def _end_extra(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            folders.end(begun)

    def _tidy(self, args: TrainingArguments) -> None:
        """Gives extra checkpoints their name, and removes all but the newest of them."""
        if not self._is_untidy or self._session is None:
            return
        self._is_untidy = False
        if self._job is not None and self._job.rank == 0:
            root = Path(args.output_dir)
            for folder in folders.extra(root, _PREFIX):
                folders.rename(folder, _EXTRA + folder.name[len(_PREFIX) :])
            folders.prune(root, _EXTRA, _KEEP)
        self._session.paused()


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
    if root is None:
        return None
    found = [folder for folder in (folders.newest(root, _EXTRA), folders.newest(root, _PREFIX, _is_whole)) if folder]
    return str(max(found, key=_steps)) if found else None


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


def _steps(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def _set(args: TrainingArguments, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(args, name, value)


def _resumed(args: TrainingArguments, state: TrainerState) -> Path:
    """The checkpoint that training goes on from, by the number of its steps."""
    extra = Path(args.output_dir) / f"{_EXTRA}{state.global_step}"
    return extra if folders.read_seal(extra) is not None else _folder(args, state)


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / f"{_PREFIX}{state.global_step}"
