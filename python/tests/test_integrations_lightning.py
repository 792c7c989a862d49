"""Lightning's trainer, real and small, stopped in the middle."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clock import Clock
from conftest import Service
from interruption import Outcome, check_reports, interrupted, outside_moira, reports_of

pytest.importorskip("lightning")

SCRIPT = """
import os, sys, time
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from moira.integrations.lightning import MoiraCallback, ckpt_path

STEPS, PAUSE = int(sys.argv[1]), float(sys.argv[2])
WORKERS = int(os.environ.get("WORLD_SIZE", 1))

class Line(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.weight = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        # What is learnt at a step depends on its number alone, so that runs can be compared.
        generator = torch.Generator().manual_seed(1000 * self.global_step + batch_idx % 2)
        inputs = torch.randn(4, 4, generator=generator)
        time.sleep(PAUSE)
        return ((self.weight(inputs).squeeze(-1) - inputs.sum(1)) ** 2).mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if (batch_idx + 1) % 2 == 0 and self.trainer.is_global_zero:
            print("step", self.global_step, flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)

model = Line()
trainer = Trainer(
    max_steps=STEPS, accelerator="cpu", devices=WORKERS, strategy="ddp" if WORKERS > 1 else "auto",
    accumulate_grad_batches=2, callbacks=[MoiraCallback()], logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(model, DataLoader(TensorDataset(torch.zeros(64, 1)), batch_size=4), ckpt_path=ckpt_path())
if trainer.is_global_zero:
    print("result", sum(parameter.sum().item() for parameter in model.parameters()), flush=True)
"""


def test_a_stopped_trainer_goes_on_where_it_was(service: Service, tmp_path: Path) -> None:
    undisturbed = outside_moira(SCRIPT, tmp_path, "20", "0")
    assert undisturbed.steps == list(range(1, 21))
    outcome, job, view = interrupted(service, SCRIPT, "20", "0.1", batch=(8, 8))
    check_steps(outcome)
    assert float(outcome.result) == pytest.approx(float(undisturbed.result), abs=1e-6)
    assert view.progress is not None
    assert view.progress.steps == 20
    assert view.progress.loss is not None
    check_reports(reports_of(service, job), local_batch=4, accumulation=1, pass_seconds=0.1)


def test_workers_stop_after_the_same_step(service: Service) -> None:
    outcome, _, view = interrupted(service, SCRIPT, "20", "0.1", workers=2, batch=(16, 16))
    check_steps(outcome)
    assert view.progress is not None and view.progress.steps == 20


def check_steps(outcome: Outcome) -> None:
    """No step is made twice. The module's hook comes after the callback's: the last step before the stop is silent."""
    assert sorted(set(outcome.steps)) == outcome.steps
    assert len(outcome.steps) == 19
    assert (outcome.steps[0], outcome.steps[-1]) == (1, 20)


def test_a_validation_is_no_step_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from moira.integrations.lightning import MoiraCallback

    clock = Clock(monkeypatch)
    callback = MoiraCallback(save_every=None, job=clock.job)
    module: Any = None
    trainer: Any = SimpleNamespace(
        global_step=0, current_epoch=0, accumulate_grad_batches=1, ckpt_path=None, train_dataloader=None
    )
    callback.setup(trainer, module, "fit")
    callback.on_train_start(trainer, module)
    for batch in range(20):
        callback.on_train_batch_start(trainer, module, None, batch)
        clock.now += 1.0
        trainer.global_step += 1
        callback.on_train_batch_end(trainer, module, None, None, batch)
        if batch % 5 == 4:
            # Short enough not to be noticed as unusual.
            clock.now += 2.0
            callback.on_validation_end(trainer, module)
    callback.on_train_end(trainer, module)
    assert set(clock.step_seconds()) == {1.0}
