"""Hugging Face's trainer, real and small, stopped in the middle."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clock import Clock
from conftest import Service
from interruption import check_reports, interrupted, outside_moira, reports_of

pytest.importorskip("transformers")

SCRIPT = """
import sys, time
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from moira.integrations.transformers import MoiraCallback, output_dir, resume_from

STEPS, PAUSE = int(sys.argv[1]), float(sys.argv[2])

class Line(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Linear(4, 1)

    def forward(self, inputs, labels):
        time.sleep(PAUSE)
        predicted = self.weight(inputs).squeeze(-1)
        return {"loss": ((predicted - labels) ** 2).mean(), "logits": predicted}

class Told(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        print("step", state.global_step, flush=True)

torch.manual_seed(7)
inputs = torch.randn(64, 4)
data = [{"inputs": row, "labels": row.sum()} for row in inputs]
arguments = TrainingArguments(
    output_dir=output_dir("out"), max_steps=STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=2,
    learning_rate=0.05, logging_steps=2, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
)
model = Line()
trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Told(), MoiraCallback()])
trainer.train(resume_from_checkpoint=resume_from(arguments))
if trainer.is_world_process_zero():
    print("result", model.weight.weight.sum().item(), flush=True)
"""


def test_a_stopped_trainer_goes_on_where_it_was(service: Service, tmp_path: Path) -> None:
    undisturbed = outside_moira(SCRIPT, tmp_path, "20", "0")
    assert undisturbed.steps == list(range(1, 21))
    outcome, job, view = interrupted(service, SCRIPT, "20", "0.1", batch=(8, 8))
    assert outcome.steps == undisturbed.steps
    assert float(outcome.result) == pytest.approx(float(undisturbed.result), abs=1e-6)
    assert view.progress is not None
    assert view.progress.steps == 20
    assert view.progress.loss is not None
    check_reports(reports_of(service, job), local_batch=4, accumulation=1, pass_seconds=0.1)
    assert "stopped as told" in [line.text for line in job.explain().history]


def test_workers_stop_after_the_same_step(service: Service) -> None:
    outcome, _, view = interrupted(service, SCRIPT, "20", "0.1", workers=2, batch=(16, 16))
    assert outcome.steps == list(range(1, 21))
    assert view.progress is not None and view.progress.steps == 20


def test_an_evaluation_is_no_step_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from moira.integrations.transformers import MoiraCallback

    clock = Clock(monkeypatch)
    callback = MoiraCallback(job=clock.job)
    arguments: Any = SimpleNamespace(train_batch_size=4, gradient_accumulation_steps=1, output_dir=str(tmp_path))
    state: Any = SimpleNamespace(global_step=0, max_steps=20, epoch=0.0)
    control: Any = SimpleNamespace()
    callback.on_init_end(arguments, state, control)
    callback.on_train_begin(arguments, state, control)
    for _ in range(20):
        callback.on_step_begin(arguments, state, control)
        clock.now += 1.0
        state.global_step += 1
        callback.on_step_end(arguments, state, control)
        if state.global_step % 5 == 0:
            # Short enough not to be noticed as unusual.
            clock.now += 2.0
            callback.on_evaluate(arguments, state, control)
    callback.on_train_end(arguments, state, control)
    assert set(clock.step_seconds()) == {1.0}


def test_a_checkpoint_that_was_not_finished_is_passed_over(tmp_path: Path) -> None:
    from moira.integrations import _folders as folders
    from moira.integrations.transformers import resume_from

    assert resume_from(tmp_path / "nothing") is None
    whole, foreign = _checkpoint(tmp_path, 5), _checkpoint(tmp_path, 7)
    folders.seal(whole, {"steps": 5})
    assert resume_from(tmp_path) == str(foreign)
    (foreign / "trainer_state.json").write_text('{"global_st')
    assert resume_from(tmp_path) == str(whole)
    (foreign / "trainer_state.json").unlink()
    (tmp_path / "checkpoint-new").mkdir()
    assert resume_from(str(tmp_path)) == str(whole)


def test_a_sealed_checkpoint_that_lost_a_part_is_passed_over(tmp_path: Path) -> None:
    from moira.integrations import _folders as folders
    from moira.integrations.transformers import resume_from

    older, newer = _checkpoint(tmp_path, 9), _checkpoint(tmp_path, 10)
    folders.seal(older, {"steps": 9})
    folders.seal(newer, {"steps": 10})
    assert resume_from(tmp_path) == str(newer)
    (newer / "model.safetensors").write_bytes(b"12")
    assert resume_from(tmp_path) == str(older)
    (older / "model.safetensors").unlink()
    assert resume_from(tmp_path) is None


def test_pruning_keeps_the_newest_whole_ones(tmp_path: Path) -> None:
    from moira.integrations import _folders as folders

    for steps in (1, 2, 10, 20):
        folders.seal(_checkpoint(tmp_path, steps), {"steps": steps})
    _checkpoint(tmp_path, 30)
    folders.prune(tmp_path, "checkpoint-", 2)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-20"]


def _checkpoint(root: Path, steps: int) -> Path:
    folder = root / f"checkpoint-{steps}"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"1234")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": steps}))
    return folder
