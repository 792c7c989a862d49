"""What all callbacks are built on: signals become wishes, and steps are counted in those of the designed batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Optional

import pytest

pytest.importorskip("torch")

from moira.integrations import _session as session_module
from moira.integrations._session import Session, Wish
from moira.job import STOPPED, Job


def begin(
    *, steps: int = 0, workers: int = 1, batch: Optional[int] = None, resumed: Optional[Path] = None, local: int = 4
) -> Session:
    environ = {"MOIRA_JOB_ID": "7", "WORLD_SIZE": str(workers)}
    if batch is not None:
        environ["MOIRA_BATCH"] = str(batch)
    return Session(Job(environ), steps=steps, local_batch=local, accumulation=1, resumed=resumed)


def test_a_notice_is_answered_with_one_save_and_a_stop_with_leaving() -> None:
    before = signal.getsignal(signal.SIGTERM)
    session = begin()
    assert session.step_ended() is Wish.GO_ON
    os.kill(os.getpid(), signal.SIGUSR1)
    assert [session.step_ended() for _ in range(3)] == [Wish.SAVE, Wish.GO_ON, Wish.GO_ON]
    os.kill(os.getpid(), signal.SIGTERM)
    assert session.step_ended() is Wish.STOP
    with pytest.raises(SystemExit) as left:
        session.leave()
    assert left.value.code == STOPPED
    session.end()
    assert signal.getsignal(signal.SIGTERM) is before


def test_after_training_a_process_leaves_the_others_before_its_interpreter_is_gone(tmp_path: Path) -> None:
    program = """
import atexit, sys
import torch.distributed
from moira.integrations._session import Session
from moira.job import Job

# What is registered first is called last.
atexit.register(lambda: print("left" if not torch.distributed.is_initialized() else "still with them"))
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
session = Session(Job({"MOIRA_JOB_ID": "7"}), steps=0, local_batch=4, accumulation=0, resumed=None)
session.end()
assert torch.distributed.is_initialized(), "what comes after training may need them"
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "meeting")], check=True, capture_output=True, text=True
    )
    assert done.stdout == "left\n"


def test_steps_are_those_of_the_designed_batch() -> None:
    session = begin(workers=2, batch=32)
    for _ in range(6):
        session.step_ended()
    assert (session.steps, session.designed_steps) == (6, 3)
    session.end()


def test_without_a_designed_batch_a_step_is_a_step() -> None:
    session = begin(steps=5)
    session.step_ended()
    assert (session.steps, session.designed_steps) == (6, 6)
    session.end()


def test_progress_does_not_depend_on_how_many_workers_there_were(tmp_path: Path) -> None:
    first = begin(workers=1)
    for _ in range(10):
        first.step_ended()
    (tmp_path / "weights").write_bytes(b"w")
    first.saved(tmp_path, 0.1)
    assert first.designed_steps == 10
    first.end()
    second = begin(steps=10, workers=4, resumed=tmp_path)
    assert second.designed_steps == 10
    second.step_ended()
    assert (second.steps, second.designed_steps) == (11, 14)
    second.end()


def test_times_are_means_without_the_first_step_and_without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("moira.integrations._session.time.monotonic", lambda: now)
    clock = session_module._Clock()
    clock.step_began()
    now += 50.0
    assert clock.step_ended() == {}
    now += 0.25
    clock.pass_ended()
    now += 0.5
    assert clock.step_ended() is None
    clock.paused()
    now += 1000.0
    clock.step_began()
    now += 0.75
    clock.pass_ended()
    now += 0.5
    assert clock.step_ended() == {"step_seconds": 1.0, "compute_seconds": 0.5}


def test_what_a_loop_does_between_steps_and_does_not_say_is_no_step_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("moira.integrations._session.time.monotonic", lambda: now)
    clock = session_module._Clock()
    clock.step_began()
    clock.step_ended()
    reports = []
    for step in range(1, 41):
        now += 20.0 if step % 10 == 0 else 0.25  # Every tenth begins after a validation.
        clock.pass_ended()
        now += 0.25
        reports.append(clock.step_ended())
    assert [report for report in reports if report] == [{"step_seconds": 0.5, "compute_seconds": 0.25}] * 20


def test_steps_that_have_become_slow_count_once_that_is_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("moira.integrations._session.time.monotonic", lambda: now)
    clock = session_module._Clock()
    clock.step_began()
    clock.step_ended()
    reports = []
    for seconds in [1.0] * 40 + [8.0] * 40:
        now += seconds
        reports.append(clock.step_ended())
    assert reports[:40] == [{"step_seconds": 1.0}] * 40
    assert reports[40:56] == [{}] * 16
    assert reports[56:] == [{"step_seconds": 8.0}] * 24


def test_a_save_is_due_by_the_measured_cost_and_by_the_first_workers_clock_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("moira.integrations._session.time.monotonic", lambda: now)
    first, second = (
        Session(
            Job({"MOIRA_JOB_ID": "7", "RANK": str(rank)}),
            steps=0,
            local_batch=4,
            accumulation=0,
            resumed=None,
            save_every="auto",
        )
        for rank in (0, 1)
    )
    saved = []
    for second_number in range(1, 61):
        now += 1.0
        assert second.step_ended() is Wish.GO_ON, "it follows what the first one says"
        if first.step_ended() is Wish.SAVE:
            saved.append(second_number)
            first.saved(tmp_path, 0.1)
    assert saved == [10, 15, 25, 35, 45, 55], "the first cost counts a tenth, since it may be an outlier"
    second.end()
    first.end()
