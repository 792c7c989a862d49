"""How often a training saves its state by itself: as often as saving is cheap, by what it was measured to cost.

Least is lost, in saving and by failures, with an interval of sqrt(2 · cost · mean time between failures) (Young 1974,
doi:10.1145/361147.361115; Daly 2006, doi:10.1016/j.future.2004.11.016). That mean time is not known of a job that
somebody may kill at any moment. So a share of the time is given instead: the interval is the cost divided by the share.
That is Young's optimum where failures are cost / (2 · share²) apart; where they are rarer, the share is still all that
is spent.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Deque, Union

#: What ``checkpoint_every`` and ``save_every`` are if nothing is said.
AUTO = "auto"

#: Training is held up by saving for this share of the time.
SHARE = 0.01
#: A state is being written while training goes on for this share of the time.
WRITING_SHARE = 0.1
#: The first cost may be an outlier: after it alone this many times the shares are spent, and the second comes sooner.
FIRST_IS_WORTH = 10.0
#: In seconds: the first save after a start, and what lies between two at least and at most.
FIRST, LEAST, MOST = 10.0, 5.0, 600.0
#: However slow the disk is, it rests as long as it writes.
REST = 2.0
#: The median of so many of the latest costs counts.
LATEST = 5

Every = Union[float, str, None]


def checked(every: Every, name: str) -> Every:
    """What a user said about the interval, under this name; nothing is never."""
    if every is None or every == AUTO:
        return every
    if isinstance(every, (int, float)) and not isinstance(every, bool) and math.isfinite(every) and every > 0:
        return every
    raise ValueError(f'{name}: expected a positive number of seconds or "{AUTO}", found {every!r}')


class Interval:
    """When the next state is due. What the user said is kept exactly."""

    def __init__(self, every: Every, now: float) -> None:
        self._every = every
        self._since = now
        self._held_up: Deque[float] = deque(maxlen=LATEST)
        self._writing: Deque[float] = deque(maxlen=LATEST)
        self._failures = 0

    def is_due(self, now: float) -> bool:
        return now - self._since >= self.seconds()

    def begin(self, now: float) -> None:
        """From here on the next interval is counted."""
        self._since = now

    def cost(self, held_up: float, writing: float = 0.0) -> None:
        """A state was saved: training waited so long, and so long it was written while training went on."""
        self._failures = 0
        self._held_up.append(held_up)
        self._writing.append(writing)

    def failed(self) -> None:
        """A state could not be saved. Whatever is in the way is not there for a moment only."""
        self._failures += 1

    def seconds(self) -> float:
        """From one save to the next."""
        if self._every is None:
            return math.inf
        if self._every != AUTO:
            return float(self._every)
        usual = self._by_cost() if self._held_up else FIRST
        return min(usual * 2.0 ** min(self._failures, 16), max(usual, MOST))

    def _by_cost(self) -> float:
        # The lower one of two: what was slow once is passed over.
        held_up, writing = statistics.median_low(self._held_up), statistics.median_low(self._writing)
        worth = FIRST_IS_WORTH if len(self._held_up) == 1 else 1.0
        wanted = max(held_up / (SHARE * worth), writing / (WRITING_SHARE * worth))
        return max(min(max(wanted, LEAST), MOST), REST * writing)
