"""A loop of one's own with Hugging Face's ``Accelerator`` under Moira.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with moira_accelerate(accelerator, local_batch=32) as run:
        while run.steps_done < epochs * len(loader):
            for batch in accelerator.skip_first_batches(loader, run.steps_done % len(loader)):
                ...
                run.step(loss=loss)
            with run.paused():
                validate()

Outside Moira ``run`` counts steps and does nothing else. What a loop does besides training, like a validation, is not
part of any step's time inside ``run.paused()``; where a loop does not say it, a step that takes four times as long as
usual is taken to hold such a thing and is not counted. The batch is the loop's own affair and stays as it is.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Iterator, Optional

from accelerate import Accelerator

from moira.integrations import _folders as folders
from moira.integrations._session import Session, Wish
from moira.interruption import after_restart
from moira.interval import AUTO, Every, checked
from moira.job import Job

__all__ = ["Run", "moira_accelerate"]

_PREFIX = "accelerate-"
#: The newest, and one more should its disk have lied.
_KEEP = 2


def moira_accelerate(
    accelerator: Accelerator,
    *,
    local_batch: Optional[int] = None,
    save_every: Every = AUTO,
    job: Optional[Job] = None,
) -> Run:
    """A loop that is reported, saved every so many seconds and when a stop is announced, and continued in the next run.
    With ``save_every="auto"`` it is saved as often as that is cheap (about 1 % of the time), with ``None`` never.

    To be entered after ``prepare`` and after everything else was registered for checkpointing: the state of the run
    before is loaded then. ``local_batch`` is the number of examples of one pass on one worker.
    """
    return Run(accelerator, local_batch, checked(save_every, "save_every"), job or Job.from_environment())


class Run:
    """One run of the loop; see ``moira_accelerate``."""

    def __init__(
        self, accelerator: Accelerator, local_batch: Optional[int], save_every: Every, job: Optional[Job]
    ) -> None:
        #: Steps of the optimiser so far, those of earlier runs included.
        self.steps_done = 0
        self._accelerator = accelerator
        self._local_batch = local_batch
        self._save_every = save_every
        self._job = job
        self._root = job.checkpoint_dir if job is not None else None
        self._session: Optional[Session] = None

    def __enter__(self) -> Run:
        if self._job is not None:
            interruption = after_restart(self._job)
            resumed = self._resume()
            self._session = Session(
                self._job,
                steps=self.steps_done,
                local_batch=self._local_batch,
                accumulation=self._accelerator.gradient_accumulation_steps - 1,
                resumed=resumed,
                interruption=interruption,
                save_every=self._save_every,
            )
            self._session.step_began()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._session is not None:
            self._session.end()

    def step(self, *, loss: Any = None, epoch: Optional[float] = None) -> None:
        """To be called after every pass. Passes of one step are counted once.

        If a stop was asked for, this saves and does not return: the process leaves with code 143.
        """
        session = self._session
        if not self._accelerator.sync_gradients:
            if session is not None:
                session.pass_ended()
            return
        self.steps_done += 1
        if session is None:
            return
        value = None if loss is None else float(getattr(loss, "detach", lambda: loss)())
        wish = session.step_ended(loss=value, epoch=epoch)
        if wish is not Wish.GO_ON:
            self.save()
        if wish is Wish.STOP:
            session.leave()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is no training, like a validation, and is not part of a step's time.

        Not all workers need to enter it.
        """
        began = time.monotonic()
        try:
            yield
        finally:
            if self._session is not None:
                self._session.leave_out(time.monotonic() - began)

    def save(self) -> None:
        """Saves now. To be called by all workers, or by none."""
        if self._session is None or self._root is None:
            return
        began = time.monotonic()
        folder = self._root / f"{_PREFIX}{self.steps_done}"
        self._accelerator.save_state(str(folder))
        self._session.saved(folder, time.monotonic() - began)
        if self._accelerator.is_main_process:
            folders.prune(self._root, _PREFIX, _KEEP)
        self._session.step_began()

    def _resume(self) -> Optional[Path]:
        found = folders.newest(self._root, _PREFIX) if self._root is not None else None
        if found is not None:
            self._accelerator.load_state(str(found))
            self.steps_done = int(found.name[len(_PREFIX) :])
        return found
