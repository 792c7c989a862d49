"""Keeps the states of a training safe: from time to time and on notice while training goes on, and at the end."""

from __future__ import annotations

import copy
import logging
import time
from collections import OrderedDict
from typing import Any, Callable, Dict, Optional

import torch

from moira.checkpoint import Checkpoints, Saved
from moira.interval import Every, Interval
from moira.job import Job
from moira.training.group import unpacked

log = logging.getLogger("moira")

State = Dict[str, Any]


class Keeper:
    """Saves states of one training, on the worker that speaks for all. The others have no part in it, so when it saves
    is its own affair."""

    def __init__(self, job: Job, checkpoints: Checkpoints, every: Every) -> None:
        self._job = job
        self.checkpoints = checkpoints
        self._interval = Interval(every, time.monotonic())
        #: How long training was held up by the state that is being written.
        self._held_up = 0.0
        self._has_heeded_notice = False
        self._being_saved = 0
        self._saved: Optional[Saved] = None
        self._saved_progress = 0
        self._saved_at = 0.0

    def newest(self) -> Optional[State]:
        """The newest state that is whole. What a run before has left unfinished is of no use to anybody."""
        self.checkpoints.remove_unfinished()
        found = self.checkpoints.load_newest(unpacked)
        return None if found is None else found[1]

    def look_after(self, step: int, progress: float, state: Callable[[], State]) -> None:
        """Between two steps: saves aside if it is time to, or if a stop is coming."""
        self._hear()
        is_told = self._job.notice and not self._has_heeded_notice
        if self.checkpoints.is_busy() or not (is_told or self._interval.is_due(time.monotonic())):
            return
        self._has_heeded_notice = self._job.notice
        _finish_pending()
        began = time.monotonic()
        self._interval.begin(began)
        try:
            own = _copied(state())
        except Exception as error:  # noqa: BLE001
            # It is the registered objects' own code that failed; the stop itself will say so again.
            log.warning("cannot copy the state to save it: %s; training goes on", error)
            self._interval.failed()
            return
        self.checkpoints.save_in_background(step, writing(own))
        self._held_up = time.monotonic() - began
        self._being_saved = int(progress)

    def save(self, step: int, progress: float, state: Callable[[], State]) -> None:
        """The present state, before anything else happens."""
        self.checkpoints.wait()
        self._hear()
        if self._saved is None or self._saved.step != step:
            self._note(self.checkpoints.save(step, writing(state())), int(progress))

    def figures(self) -> Optional[Dict[str, float]]:
        """The latest state that is safe, in the words of the progress protocol."""
        if self._saved is None:
            return None
        age = time.monotonic() - self._saved_at
        return {"steps": self._saved_progress, "seconds": self._saved.seconds, "age_seconds": age}

    def _hear(self) -> None:
        """What came of the state that was saved aside."""
        outcome = self.checkpoints.outcome()
        if outcome is None:
            return
        saved, error = outcome
        if saved is not None:
            self._interval.cost(self._held_up, saved.seconds)
            self._note(saved, self._being_saved)
        else:
            self._interval.failed()
            log.warning("%s; training goes on", error)

    def _note(self, saved: Saved, progress: int) -> None:
        self._saved, self._saved_progress, self._saved_at = saved, progress, time.monotonic()


def writing(state: State) -> Callable[[Any], None]:
    """A way to write the state into a file."""
    return lambda file: torch.save(state, file)


def _finish_pending() -> None:
    """A copy waits for what the device has still to compute, which is no cost of saving."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _copied(value: Any) -> Any:
    """The same state in memory of its own, so that training may go on while it is written."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value) in (dict, OrderedDict):
        return {key: _copied(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(inner) for inner in value)
    return copy.deepcopy(value)
