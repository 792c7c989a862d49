"""A real loop with Accelerate, alone and with two workers, stopped in the middle."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clock import Clock
from conftest import Service
from interruption import check_reports, interrupted, outside_moira, reports_of

pytest.importorskip("accelerate")

SCRIPT = """
import sys, time
import torch
from accelerate import Accelerator
from moira.integrations.accelerate import moira_accelerate

STEPS, PAUSE = int(sys.argv[1]), float(sys.argv[2])
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
model, optimizer = accelerator.prepare(model, optimizer)
with moira_accelerate(accelerator, local_batch=4) as run:
    while run.steps_done < STEPS:
        for half in range(2):
            torch.manual_seed(1000 * run.steps_done + 10 * half + accelerator.process_index)
            inputs = torch.randn(4, 4)
            with accelerator.accumulate(model):
                loss = ((model(inputs).squeeze(-1) - inputs.sum(1)) ** 2).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            time.sleep(PAUSE)
            if half == 1 and accelerator.is_main_process:
                print("step", run.steps_done + 1, flush=True)
            run.step(loss=loss)
if accelerator.is_main_process:
    print("result", sum(parameter.sum().item() for parameter in model.parameters()), flush=True)
"""


def test_a_stopped_loop_goes_on_where_it_was(service: Service, tmp_path: Path) -> None:
    undisturbed = outside_moira(SCRIPT, tmp_path, "20", "0")
    assert undisturbed.steps == list(range(1, 21))
    outcome, job, view = interrupted(service, SCRIPT, "20", "0.1", batch=(8, 8))
    assert outcome.steps == undisturbed.steps
    assert float(outcome.result) == pytest.approx(float(undisturbed.result), abs=1e-6)
    assert view.progress is not None
    assert view.progress.steps == 20
    assert view.progress.loss is not None
    check_reports(reports_of(service, job), local_batch=4, accumulation=1, pass_seconds=0.1)


def test_two_workers_stop_after_the_same_step(service: Service) -> None:
    outcome, _, view = interrupted(service, SCRIPT, "20", "0.1", workers=2, batch=(8, 16))
    assert outcome.steps == list(range(1, 21))
    # Twice the examples in each: twice as many steps of the batch it was designed for.
    assert view.progress is not None and view.progress.steps == 40


@pytest.mark.parametrize(("pause", "says_so"), [(2.0, True), (100.0, True), (100.0, False)])
def test_a_validation_between_steps_is_no_step_time(
    pause: float, says_so: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moira.integrations.accelerate import moira_accelerate

    clock = Clock(monkeypatch)
    accelerator: Any = SimpleNamespace(gradient_accumulation_steps=1, sync_gradients=True)
    with moira_accelerate(accelerator, save_every=None, job=clock.job) as run:
        for _ in range(20):
            clock.now += 1.0
            run.step()
            if run.steps_done % 5 != 0:
                continue
            if says_so:
                with run.paused():
                    clock.now += pause
            else:
                clock.now += pause
    assert set(clock.step_seconds()) == {1.0}


def test_a_pause_in_the_middle_of_a_step_is_not_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from moira.integrations.accelerate import moira_accelerate

    clock = Clock(monkeypatch)
    accelerator: Any = SimpleNamespace(gradient_accumulation_steps=2)
    with moira_accelerate(accelerator, save_every=None, job=clock.job) as run:
        for passed in range(20):
            clock.now += 0.5
            accelerator.sync_gradients = passed % 2 == 1
            run.step()
            with run.paused():
                clock.now += 1.0
    assert run.steps_done == 10
    assert set(clock.step_seconds()) == {1.0}


def test_a_pause_outside_moira_is_nothing() -> None:
    from moira.integrations.accelerate import Run

    accelerator: Any = SimpleNamespace(sync_gradients=True)
    with Run(accelerator, None, None, None) as run:
        run.step()
        with run.paused():
            run.step()
    assert run.steps_done == 2
