"""A clock that goes on when it is told to, and what a job reports by it."""

from __future__ import annotations

from typing import Any

import pytest

from moira.job import Job


class Clock:
    """The time of this process from now on, and of a job that keeps what is reported of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.job = Job({"MOIRA_JOB_ID": "7"})
        self._reports: list[dict[str, Any]] = []
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr(self.job, "report", lambda **figures: self._reports.append(figures))

    def step_seconds(self) -> list[float]:
        """Of all reports that say how long a step takes."""
        return [report["step_seconds"] for report in self._reports if "step_seconds" in report]
