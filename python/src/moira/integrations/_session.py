"""One training under a framework, as its callback sees it: counted, reported, and told to save or to stop.

It knows when things happen and nothing of how a framework does them.
"""

from __future__ import annotations

import atexit
import enum
import signal
import statistics
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Callable, Deque, Mapping, NoReturn, Optional

import torch
import torch.distributed

from moira.integrations import _folders as folders
from moira.interruption import Interruption, departure_of, note_departure
from moira.interval import Every, Interval
from moira.job import STOPPED, Job

__all__ = ["Session", "Wish"]

#: How long steps are gathered into one mean.
_INTERVAL_SECONDS = 1.0
#: So many of the latest steps say how long one usually takes.
_WINDOW = 33
#: What takes so many times as long held something else too: a validation, a checkpoint, waiting for a worker with one.
_LONGEST = 4.0


class Wish(enum.IntEnum):
    """What a callback should have its framework do."""

    GO_ON = 0
    SAVE = 1
    #: Save, and leave.
    STOP = 2


class _Said(enum.IntEnum):
    """What a worker has to say after a step; the strongest word of all counts."""

    NOTHING = 0
    #: It is time to save by ourselves. Only the first worker says so, by its own clock and what it measured.
    DUE = 1
    NOTICE = 2
    STOP = 3


class Session:
    """From the beginning of training to its end."""

    def __init__(
        self,
        job: Job,
        *,
        steps: int,
        local_batch: Optional[int],
        accumulation: int,
        resumed: Optional[Path],
        interruption: Optional[Interruption] = None,
        save_every: Every = None,
        has_room: Optional[Callable[[], bool]] = None,
    ) -> None:
        """``steps`` are the framework's own; ``resumed`` is the checkpoint that they come from, and ``interruption`` is
        the one that this run ends, begun when everything was imported and nothing restored. A save is wished for
        every ``save_every`` seconds, as often as it is cheap (``auto``), or never; but not where ``has_room``, asked on
        the first worker, says that the disk is too full.

        A checkpoint that was sealed knows how many examples that were, also with another number of workers.
        """
        self.steps = steps
        self._job = job
        self._local_batch = local_batch
        self._accumulation = accumulation
        self._step_examples = None if local_batch is None else local_batch * (accumulation + 1) * job.world_size
        sealed: Mapping[str, Any] = (folders.read_seal(resumed) if resumed is not None else None) or {}
        self._designed = job.batch or sealed.get("designed") or self._step_examples
        self._examples: int = sealed.get("examples") or steps * (self._step_examples or 0)
        self._clock = _Clock()
        self._interval = Interval(save_every, time.monotonic())
        self._has_room = has_room
        self._saw_notice = False
        self._interruption = interruption
        self._departure: Optional[Interruption] = None
        if interruption is not None:
            interruption.lap("restore")
        self._handlers = [(number, signal.getsignal(number)) for number in (signal.SIGUSR1, signal.SIGTERM)]
        job.watch_signals()

    @property
    def designed_steps(self) -> int:
        """How far training is, in steps of the batch it was designed for."""
        return self._examples // self._designed if self._designed and self._step_examples else self.steps

    def step_began(self) -> None:
        self._clock.step_began()

    def pass_ended(self) -> None:
        """A pass that was not the last of its step, so that no gradients were exchanged in it."""
        self._clock.pass_ended()

    def step_ended(self, **figures: Any) -> Wish:
        """Counts and reports a step. All workers are told the same after the same step."""
        self.steps += 1
        self._examples += self._step_examples or 0
        times = self._clock.step_ended()
        self._end_interruption()
        if times is not None:
            batch = {"local_batch": self._local_batch, "accumulation": self._accumulation}
            self._job.report(steps=self.designed_steps, **figures, **times, **(batch if self._local_batch else {}))
        return self._wish()

    def report(self, **figures: Any) -> None:
        self._job.report(**figures)

    def paused(self) -> None:
        """What happened since the last step was no training."""
        self._clock.paused()

    def leave_out(self, seconds: float) -> None:
        """So long, up to now, the loop did something else than training, perhaps in the middle of a step."""
        self._clock.leave_out(seconds)

    def saved(self, folder: Path, seconds: float, *, is_extra: bool = False) -> None:
        """A checkpoint is written on this worker. Once it is on all of them, the first one seals it.

        ``is_extra`` is said of it there: it was written between those that the user asked the framework for.
        """
        began = time.monotonic()
        if _together():
            torch.distributed.barrier()
        if self._job.rank == 0:
            extra = {"extra": True} if is_extra else {}
            said = {"steps": self.steps, "examples": self._examples, "designed": self._designed, **extra}
            folders.seal(folder, said)
            figures = {"steps": self.designed_steps, "seconds": seconds}
            self._job.report(steps=self.designed_steps, checkpoint=figures)
        if _together():
            torch.distributed.barrier()
        now = time.monotonic()
        self._interval.cost(seconds + now - began)
        # From its end: training went on for none of it.
        self._interval.begin(now)
        self._clock.paused()
        if self._departure is not None:
            self._departure.lap("checkpoint")

    def leave(self) -> NoReturn:
        """Ends this process as one that was stopped."""
        self._job.flush()
        _part()
        if self._departure is not None:
            self._departure.lap("stop")
            note_departure(self._job, self._departure)
        sys.exit(STOPPED)

    def end(self) -> None:
        """Training is over: from now on a signal does again what it did before."""
        self._job.report(steps=self.designed_steps)
        self._job.flush()
        atexit.register(_part)
        for number, handler in self._handlers:
            signal.signal(number, handler)

    def _end_interruption(self) -> None:
        """Once a second step shows what one usually takes, it is known what the interruption cost."""
        seconds = self._clock.last
        if self._interruption is not None and seconds is not None:
            cost = self._interruption.step(seconds, typical=seconds)
            if cost is not None:
                self._job.report(restart=cost)
                self._interruption = None

    def _wish(self) -> Wish:
        said = _agreed(self._own_word())
        if said is _Said.STOP:
            self._departure = self._departure or departure_of(self._job)
            return Wish.STOP
        if said is _Said.NOTICE:
            # One save for one notice: what comes after it is saved when the stop itself comes.
            first, self._saw_notice = not self._saw_notice, True
            return Wish.SAVE if first else Wish.GO_ON
        return Wish.SAVE if said is _Said.DUE else Wish.GO_ON

    def _own_word(self) -> _Said:
        if self._job.stop_requested:
            return _Said.STOP
        if self._job.notice and not self._saw_notice:
            return _Said.NOTICE
        return _Said.DUE if self._job.rank == 0 and self._is_due() else _Said.NOTHING

    def _is_due(self) -> bool:
        now = time.monotonic()
        if not self._interval.is_due(now):
            return False
        if self._has_room is None or self._has_room():
            return True
        # Looked at again when the next one is due, not after every step.
        self._interval.begin(now)
        return False


class _Clock:
    """Mean times since the last report; from the end of a step to the end of the next, so that fetching data counts.

    What a loop does between two steps and does not say is known by the step then being much longer than usual. Such a
    step is not counted.
    """

    def __init__(self) -> None:
        self._began: Optional[float] = None
        self._passes_end: Optional[float] = None
        self._passes = 0
        # The first step of a process compiles and warms up what later ones find ready.
        self._is_first = True
        #: Seconds of the step that ended last, unless it was interrupted.
        self.last: Optional[float] = None
        self._latest: Deque[float] = deque(maxlen=_WINDOW)
        self._reset(time.monotonic())

    def step_began(self) -> None:
        if self._began is None:
            self._began = time.monotonic()

    def pass_ended(self) -> None:
        if self._began is not None:
            self._passes += 1
            self._passes_end = time.monotonic()

    def step_ended(self) -> Optional[dict[str, float]]:
        """The means, once there are enough of them; empty if they are of nothing."""
        now = time.monotonic()
        self.last = now - self._began if self._began is not None else None
        if self._began is not None and not self._is_first and self._is_usual(now - self._began):
            self._steps += 1
            self._step_seconds += now - self._began
            if self._passes_end is not None:
                self._pass_seconds += self._passes_end - self._began
                self._all_passes += self._passes
        self._began, self._passes_end, self._passes, self._is_first = now, None, 0, False
        if now - self._since < _INTERVAL_SECONDS:
            return None
        means = {}
        if self._steps:
            means["step_seconds"] = self._step_seconds / self._steps
        if self._all_passes:
            means["compute_seconds"] = self._pass_seconds / self._all_passes
        self._reset(now)
        return means

    def paused(self) -> None:
        self._began, self._passes_end, self._passes = None, None, 0

    def leave_out(self, seconds: float) -> None:
        if self._began is not None:
            self._began += seconds
        if self._passes_end is not None:
            self._passes_end += seconds

    def _is_usual(self, seconds: float) -> bool:
        self._latest.append(seconds)
        return seconds <= _LONGEST * statistics.median_low(self._latest)

    def _reset(self, now: float) -> None:
        self._since = now
        self._steps = self._all_passes = 0
        self._step_seconds = self._pass_seconds = 0.0


def _part() -> None:
    """Leaves the other workers. A process group that is left to the end of the interpreter may let go of tensors when
    there is none any more, and abort a job that has done its work (https://github.com/pytorch/pytorch/pull/179291).
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _together() -> bool:
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


def _agreed(own: _Said) -> _Said:
    """The strongest word of all workers: a signal reaches them at different moments, and a step needs all of them."""
    if not _together():
        return own
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    strongest = torch.tensor([int(own)], device=device)
    torch.distributed.all_reduce(strongest, op=torch.distributed.ReduceOp.MAX)
    return _Said(int(strongest.item()))
