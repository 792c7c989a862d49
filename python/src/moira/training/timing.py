"""How long steps take, split into computing and exchanging. What a training does between two steps is no step."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from typing import Deque, Dict, List, Optional

#: So many of the latest steps say what a loop usually does after a step.
_WINDOW = 33


@dataclass(frozen=True)
class StepTime:
    """One step, in seconds."""

    #: From the end of the step before to the optimiser's step, and what the workers told each other afterwards.
    work: float
    #: How much of it was spent on exchanging gradients.
    exchange: float
    #: What the user's loop did after the optimiser's step, on the worker where it took longest.
    after: float


class Waits:
    """Tells the exchange of gradients from waiting for a worker that did something else: evaluated, saved its state.

    Every worker says for how long it did something else, and all know it after the same step. The one that did so for
    the longest kept the others waiting, and they exchanged nothing meanwhile.
    """

    def __init__(self, rank: int, workers: int) -> None:
        self._rank, self._workers = rank, workers

    def told(self, before: float, after: float) -> List[float]:
        """What this worker adds to the numbers that are summed up: what it did before and after the step at hand."""
        told = [0.0] * (2 * self._workers)
        told[self._rank], told[self._workers + self._rank] = before, after
        return told

    def step_time(self, work: float, gradients: float, agreeing: float, told: List[float]) -> StepTime:
        """The step at hand, of which these parts took so long on this worker, by what all have told."""
        before, after = told[: self._workers], told[self._workers :]
        waited_before = min(max(before) - before[self._rank], gradients)
        agreed = max(agreeing - (max(after) - after[self._rank]), 0.0)
        is_alone = self._workers == 1
        exchange = 0.0 if is_alone else gradients - waited_before + agreed
        return StepTime(work - waited_before + agreed, exchange, max(after))


class StepTimes:
    """Times of whole steps of one kind, since the last report."""

    def __init__(self) -> None:
        self._skip = 1
        self._steps = 0
        self._work = 0.0
        self._exchange = 0.0
        self._after: Deque[float] = deque(maxlen=_WINDOW)

    def add(self, step: StepTime) -> None:
        """Takes in a step. The first of a kind is never typical."""
        if self._skip > 0:
            self._skip -= 1
            return
        self._steps += 1
        self._work += step.work
        self._exchange += min(step.exchange, step.work)
        self._after.append(step.after)

    def whole(self, step: StepTime) -> float:
        """How long a step took, without what is not usually done after one."""
        return step.work + min(step.after, self._usually_after() if self._after else step.after)

    def mean(self) -> Optional[float]:
        """Mean time of a step; nothing before the first typical one."""
        return self._work / self._steps + self._usually_after() if self._steps else None

    def take(self, passes: int) -> Dict[str, float]:
        """Mean times since the last call, in the words of the progress protocol."""
        whole = self.mean()
        if whole is None:
            return {}
        exchange = self._exchange / self._steps
        self._steps, self._work, self._exchange = 0, 0.0, 0.0
        return {"step_seconds": whole, "compute_seconds": max(whole - exchange, 1e-9) / passes}

    def _usually_after(self) -> float:
        """Some loops wait for the device or write a line after each step, and that is part of its time. An evaluation
        each hundred steps is not."""
        return statistics.median_low(self._after)
