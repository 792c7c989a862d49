"""What an interruption costs, phase by phase: from the notice of a stop to the first step after it.

A run leaves word of its part beside its states, and the next one reports the whole. It does not know how anything is
saved or restored, only how long it took.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Dict, Optional

from moira.job import Job

log = logging.getLogger("moira")

#: What leaving cost, for the next run to report with what coming back costs.
_DEPARTURE = "departure.json"


class Interruption:
    """What a restart or a resize costs, phase by phase, until training has gone on."""

    def __init__(self, kind: str, phases: Optional[Dict[str, float]] = None) -> None:
        self.kind = kind
        self.phases: Dict[str, float] = dict(phases or {})
        self._mark = time.monotonic()
        self._first_step: Optional[float] = None

    def lap(self, phase: str) -> None:
        """What took place since the last lap was this phase."""
        now = time.monotonic()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._mark
        self._mark = now

    def step(self, seconds: float, typical: Optional[float]) -> Optional[Dict[str, object]]:
        """Takes in the steps that follow. Once it is known what a step usually takes, the whole as a report."""
        if self._first_step is None:
            self._first_step = seconds
            return None
        if typical is None:
            return None
        self.phases["first_step"] = max(self._first_step - typical, 0.0)
        return {"kind": self.kind, "phases": self.phases}


def process_age() -> float:
    """Seconds since this process began, by the kernel."""
    try:
        with open("/proc/self/stat") as file:
            began = float(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime") as file:
            uptime = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(uptime - began / os.sysconf("SC_CLK_TCK"), 0.0)


def departure_of(job: Job) -> Interruption:
    """The interruption that begins with this job's leaving: it was told some time ago, and trained until now."""
    noticed_at = job.noticed_at
    return Interruption("restart", {"notice": time.monotonic() - noticed_at if noticed_at is not None else 0.0})


def note_departure(job: Job, departure: Interruption) -> None:
    """Leaves word of what the stop has cost so far. The first worker does."""
    if job.rank != 0 or job.checkpoint_dir is None:
        return
    try:
        (job.checkpoint_dir / _DEPARTURE).write_text(json.dumps(departure.phases))
    except OSError as error:
        log.warning("cannot note what the stop cost in %s: %s", job.checkpoint_dir, error.strerror)


def after_restart(job: Job) -> Optional[Interruption]:
    """The interruption that this run ends, up to now; nothing for the first run of a job, or one that joins others."""
    if job.attempt <= 1 or job.joins or job.rank != 0:
        return None
    phases = _departure(job.checkpoint_dir)
    age = process_age()
    if job.launched_at is not None:
        phases["start"] = max(time.time() - age - job.launched_at, 0.0)
    phases["import"] = age
    return Interruption("restart", phases)


def _departure(directory: Optional[Path]) -> Dict[str, float]:
    """What the run before has left word of; nothing if it was killed or had nothing to say."""
    if directory is None:
        return {}
    note = directory / _DEPARTURE
    try:
        said = json.loads(note.read_text())
        note.unlink()
        return {name: float(said[name]) for name in ("notice", "checkpoint", "stop") if name in said}
    except (OSError, ValueError, TypeError):
        return {}
