"""What the tests of all frameworks have in common: a training that is stopped in the middle goes on where it was.

A script prints ``step N`` for every step it makes and ``result X`` at the end, and takes the number of its steps and
how long a pass lasts as arguments.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from conftest import PATIENCE, PYTHON_FOLDER, Service
from workers import whole_lines

from moira.client import JobHandle, JobView


@dataclass
class Outcome:
    """What a script printed: the steps it made, and what came of them."""

    steps: list[int]
    result: str

    @classmethod
    def read(cls, log: str) -> Outcome:
        results = re.findall(r"^result (\S+)$", log, re.MULTILINE)
        assert len(results) == 1, log
        return cls([int(step) for step in re.findall(r"^step (\d+)$", log, re.MULTILINE)], results[0])


def outside_moira(script: str, folder: Path, *arguments: str) -> Outcome:
    """The same script, undisturbed, with no scheduler around."""
    path = folder / "script.py"
    path.write_text(script)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOIRA_")}
    environment["PYTHONPATH"] = str(PYTHON_FOLDER / "src")
    command = [sys.executable, str(path), *arguments]
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return Outcome.read(ran.stdout)


def interrupted(service: Service, script: str, *arguments: str, **options: Any) -> tuple[Outcome, JobHandle, JobView]:
    """The script as a job that is held when it has made some steps, and released again."""
    job = service.submit_python(script, *arguments, workdir=service.data_dir, **options)
    service.until_job(job, lambda view: (_steps(view) or 0) > 0, "it has reported steps")
    job.hold()
    service.until_job(job, lambda view: view.state == "held", "it is held")
    first = service.log_of(job, attempt=1)
    assert not re.search(r"^result ", first, re.MULTILINE), first
    job.release()
    view = job.wait(PATIENCE)
    second = service.log_of(job, attempt=2)
    assert view.succeeded, f"{view.message}\n{first}\n----\n{second}"
    assert (view.attempts, view.failures) == (2, 0)
    return Outcome.read(f"{first}\n{second}"), job, view


def reports_of(service: Service, job: JobHandle) -> list[dict[str, Any]]:
    """Everything the job has reported, line by line, of one run after the other."""
    files = sorted(service.data_dir.glob(f"*/{job.id}.*/progress.jsonl"), key=lambda file: file.parent.name)
    return [line for file in files for line in whole_lines(file)]


def check_reports(reports: list[dict[str, Any]], *, local_batch: int, accumulation: int, pass_seconds: float) -> None:
    """Steps are counted on from run to run, times are those of steps, and what was saved is said."""
    steps = [report["steps"] for report in reports if "steps" in report]
    assert steps == sorted(steps), reports
    timed = [report for report in reports if "step_seconds" in report]
    assert timed, reports
    for report in timed:
        assert (report["local_batch"], report["accumulation"]) == (local_batch, accumulation)
        assert pass_seconds <= report["compute_seconds"] < report["step_seconds"] < 60
    saved = [report["checkpoint"] for report in reports if "checkpoint" in report]
    assert saved and saved[0]["steps"] > 0 and 0 < saved[0]["seconds"] < 60, reports
    (cost,) = [report["restart"] for report in reports if "restart" in report]
    assert cost["kind"] == "restart"
    assert set(cost["phases"]) == {"notice", "checkpoint", "stop", "start", "import", "restore", "first_step"}
    assert 0.1 < cost["phases"]["import"] < 120 and 0 < cost["phases"]["checkpoint"] < 60, cost


def _steps(view: JobView) -> Optional[int]:
    return view.progress.steps if view.progress is not None else None
