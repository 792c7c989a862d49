"""A training loop for tests: linear regression, every step written down by the first worker, every example by all.

Arguments come by the environment: TEST_EPOCHS, TEST_OPTIMIZER, TEST_EXAMPLES, TEST_BATCH, TEST_PRECISION,
TEST_CHECKPOINT_SECONDS, TEST_SLOW_SAVE (seconds a state takes to be written at least), TEST_TERM (`boundary` or `step`:
a signal to the first worker between the first two epochs, or in the middle of the tenth step). A batch takes at least
as many seconds as the file `pace` says, if there is one, and TEST_EXAMPLE_SECONDS more for each of its examples.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Tuple

import torch
from torch import nn

import moira

directory = Path(os.environ["TEST_DIRECTORY"])
pace = directory / "pace"
count = int(os.environ.get("TEST_EXAMPLES", "1000"))


class Numbered(torch.utils.data.Dataset[Tuple[torch.Tensor, torch.Tensor, int]]):
    """Examples that know their number."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(count, 10, generator=generator)
        noise = 0.3 * torch.randn(count, 1, generator=generator)
        self.outputs = self.inputs @ torch.randn(10, 1, generator=generator) + noise

    def __len__(self) -> int:
        return count

    def __getitem__(self, index: int) -> Tuple[torch.Tensor, torch.Tensor, int]:
        return self.inputs[index], self.outputs[index], index


class SlowToSave:
    """A state that takes its time to be written."""

    def state_dict(self) -> SlowToSave:
        return self

    def load_state_dict(self, _state: object) -> None:
        """There is nothing in it."""

    def __reduce__(self) -> Tuple[Any, Tuple[()]]:
        time.sleep(float(os.environ["TEST_SLOW_SAVE"]))
        return str, ()


def send_term(when: str) -> None:
    """To this process, once in the life of the job."""
    sent = directory / "sent"
    if os.environ.get("TEST_TERM") == when and training.rank == 0 and not sent.exists():
        sent.touch()
        os.kill(os.getpid(), signal.SIGTERM)


training = moira.init(seed=3)
torch.manual_seed(5)
net: Any = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
kind = os.environ.get("TEST_OPTIMIZER", "SGD")
optimizer: Any = getattr(torch.optim, kind)(net.parameters(), lr=0.05 if kind == "SGD" else 0.005)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if os.environ.get("TEST_PRECISION") == "scaled" else None
data: Any = torch.utils.data.DataLoader(Numbered(), batch_size=int(os.environ.get("TEST_BATCH", "64")), shuffle=True)
net, optimizer, data = moira.wrap(
    net, optimizer, data, scaler=scaler, checkpoint_every=float(os.environ.get("TEST_CHECKPOINT_SECONDS", "1000"))
)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
moira.register(schedule=schedule)
if "TEST_SLOW_SAVE" in os.environ:
    moira.register(slow=SlowToSave())


def note(step: moira.Step) -> None:
    if training.rank == 0:
        line = {"number": step.number, "loss": step.loss, "batch": step.batch, "workers": step.workers}
        line.update({"progress": step.progress, "passes": step.passes, "rate": optimizer.param_groups[0]["lr"]})
        with open(directory / "steps.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")


moira.on_step(note)
for epoch in moira.epochs(int(os.environ.get("TEST_EPOCHS", "3"))):
    for inputs, outputs, numbers in data:
        began = time.monotonic()
        while pace.exists() and time.monotonic() - began < float(pace.read_text()):
            time.sleep(0.01)
        time.sleep(float(os.environ.get("TEST_EXAMPLE_SECONDS", "0")) * len(numbers))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), outputs)
        if training.progress == 10:
            send_term("step")
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        moira.report(loss=loss)
        with open(directory / "examples.jsonl", "a") as file:
            file.write(json.dumps({"epoch": epoch, "numbers": numbers.tolist()}) + "\n")
    schedule.step()
    if epoch == 0:
        send_term("boundary")
if training.rank == 0:
    weights = {name: value.flatten().tolist() for name, value in net.state_dict().items()}
    (directory / "weights.json").write_text(json.dumps(weights))
