"""What the service wants of a training at this moment, as its first worker sees it."""

from __future__ import annotations

import time
from typing import List, Optional, Tuple

from moira.gang import GangFiles, Resize
from moira.job import Job, Tuning

#: How often files are looked at.
_LOOK_SECONDS = 0.2


class Wishes:
    """Looks from time to time whether the batch or the workers are to change."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.files = GangFiles(job)
        #: The members of the present gang, by rank.
        self.members: List[int] = list(range(job.world_size))
        self._seen = job.tuning()
        self._look_at = 0.0

    def now(self) -> Tuple[Optional[Tuning], Optional[Resize]]:
        """A batch that was not asked for before, and other workers if all of them are ready. To name the workers is to
        give the word: they will change after this step."""
        if self._job.rank != 0 or time.monotonic() < self._look_at:
            return None, None
        self._look_at = time.monotonic() + _LOOK_SECONDS
        tuning = self._job.tuning()
        fresh = tuning if tuning != self._seen else None
        self._seen = tuning
        return fresh, self._resize()

    def newcomers(self, resize: Resize) -> List[int]:
        """Those who are not here yet."""
        return [member for member in resize.members if member not in self.members]

    def agreed(self, gang: int) -> Resize:
        """The change that the first worker has named. Its note was there before."""
        resize = self.files.wanted(gang - 1)
        if resize is None or resize.gang != gang:
            raise RuntimeError(f"the workers agreed on change {gang}, and its note cannot be read")
        return resize

    def changed(self, members: List[int]) -> None:
        """These are the workers now. A batch that was asked for meanwhile was meant for them."""
        self.members = members
        self._seen = self._job.tuning()

    def _resize(self) -> Optional[Resize]:
        resize = self.files.wanted(self._job.gang)
        if resize is None or self._job.stop_requested or not self.files.are_ready(resize, self.newcomers(resize)):
            return None
        return resize if self.files.give_the_word(resize.gang) else None
