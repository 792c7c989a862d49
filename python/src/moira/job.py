"""The running job as its scheduler sees it: what the environment says, the signals, and the way back.

Nothing but the standard library is needed here, and nothing of it knows about a framework: callbacks and training loops
are built on top. Outside Moira there is no job, and ``Job.from_environment`` says so with ``None``.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Optional

from moira.reporter import Reporter

#: The exit code of a process that was told to stop, saved its state and left: not a failure.
STOPPED = 143


@dataclass(frozen=True)
class Tuning:
    """The batch the scheduler wants: examples of one pass on one worker, and passes before the last one of a step."""

    local_batch: int
    accumulation: int


class Job:
    """This process as part of a job under Moira."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.id = environ["MOIRA_JOB_ID"]
        self.name = environ.get("MOIRA_JOB_NAME", "")
        self.attempt = _number(environ, "MOIRA_ATTEMPT", 1)
        self.rank = _number(environ, "RANK", 0)
        self.world_size = _number(environ, "WORLD_SIZE", 1)
        self.local_rank = _number(environ, "LOCAL_RANK", 0)
        #: Number of this process within the run, which stays when its rank changes.
        self.member = _number(environ, "MOIRA_MEMBER", self.rank)
        #: Counts the changes of workers within the run, from 1.
        self.gang = _number(environ, "MOIRA_GANG", 1)
        #: Whether this process joins workers that are under way.
        self.joins = environ.get("MOIRA_JOINS") == "1"
        self.master_addr = environ.get("MASTER_ADDR", "127.0.0.1")
        self.master_port = _number(environ, "MASTER_PORT", 0)
        self.max_workers: Optional[int] = _optional_number(environ, "MOIRA_MAX_WORKERS")
        #: The batch size the training was submitted with, over all workers, and the largest it may have.
        self.batch: Optional[int] = _optional_number(environ, "MOIRA_BATCH")
        self.batch_max: Optional[int] = _optional_number(environ, "MOIRA_BATCH_MAX")
        self.checkpoint_dir = _path(environ, "MOIRA_CHECKPOINT_DIR")
        self.resize_file = _path(environ, "MOIRA_RESIZE_FILE")
        self.gang_dir = _path(environ, "MOIRA_GANG_DIR")
        self.launched_at: Optional[float] = _optional_float(environ, "MOIRA_LAUNCHED_AT")
        self._tuning_file = _path(environ, "MOIRA_TUNING_FILE")
        self._launch_tuning = _tuning_of(environ.get("MOIRA_LOCAL_BATCH"), environ.get("MOIRA_ACCUMULATION"))
        self._noticed_at: Optional[float] = None
        self._stop_requested = False
        self._reporter = Reporter.from_environment(environ)

    @classmethod
    def from_environment(cls, environ: Optional[Mapping[str, str]] = None) -> Optional[Job]:
        """The job this process belongs to; nothing outside Moira."""
        environ = os.environ if environ is None else environ
        return cls(environ) if environ.get("MOIRA_JOB_ID") else None

    @property
    def is_adaptive(self) -> bool:
        """Whether the scheduler may choose the batch."""
        return self.batch is not None and self.batch_max is not None and self.batch_max > self.batch

    def report(self, **figures: Any) -> None:
        """Tells the service how it goes: ``steps``, ``epoch``, ``loss``, ``step_seconds``, ``metrics`` and what else
        the protocol knows. Only rank 0 speaks. It returns at once, whatever the service does."""
        if self.rank == 0:
            self._reporter.put(figures)

    def flush(self, timeout: float = 2.0) -> None:
        """Waits until everything reported so far is written, but never longer than this many seconds."""
        self._reporter.flush(timeout)

    def watch_signals(self) -> None:
        """From now on a notice or a stop is remembered rather than carried out at once. Main thread only."""
        signal.signal(signal.SIGUSR1, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    @property
    def notice(self) -> bool:
        """A stop is coming: now is a good time to save."""
        return self._noticed_at is not None

    @property
    def noticed_at(self) -> Optional[float]:
        """When the first signal came, by ``time.monotonic``."""
        return self._noticed_at

    @property
    def stop_requested(self) -> bool:
        """Save, and leave with code ``STOPPED``."""
        return self._stop_requested

    def tuning(self) -> Optional[Tuning]:
        """The batch the scheduler wants at this moment; nothing if the batch is the job's own affair."""
        if self._tuning_file is not None:
            try:
                said = json.loads(self._tuning_file.read_text())
                return _tuning_of(said["local_batch"], said["accumulation"])
            except (OSError, ValueError, KeyError, TypeError):
                # Not there yet. It is replaced whole, so half of it is never seen.
                pass
        return self._launch_tuning

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._noticed_at is None:
            self._noticed_at = time.monotonic()
        if number == signal.SIGTERM:
            self._stop_requested = True


def _tuning_of(local_batch: Any, accumulation: Any) -> Optional[Tuning]:
    if local_batch is None:
        return None
    tuning = Tuning(int(local_batch), int(accumulation or 0))
    return tuning if tuning.local_batch > 0 and tuning.accumulation >= 0 else None


def _number(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    number = _optional_number(environ, name)
    return otherwise if number is None else number


def _optional_number(environ: Mapping[str, str], name: str) -> Optional[int]:
    text = environ.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the variable {name} should be a whole number, found {text!r}") from None


def _optional_float(environ: Mapping[str, str], name: str) -> Optional[float]:
    try:
        return float(environ[name])
    except (KeyError, ValueError):
        return None


def _path(environ: Mapping[str, str], name: str) -> Optional[Path]:
    text = environ.get(name)
    return Path(text) if text else None
