"""A training loop for tests: linear regression, every step written down by the first worker, every example by all.

Arguments come by the environment: TEST_EPOCHS, TEST_OPTIMIZER, TEST_EXAMPLES, TEST_BATCH, TEST_LOADERS, TEST_PRECISION,
TEST_CLIP (the largest norm of a gradient), TEST_NOISE (of the gradient of one example, added to its own),
TEST_CHECKPOINT_SECONDS (or `auto`, which is the default of the SDK), TEST_SLOW_SAVE (seconds a state takes to be
written at least), TEST_TERM (`boundary`, `step` or `last`: a signal to the first worker between the first two epochs,
in the middle of the tenth step, or in the middle of the last step of the first epoch), TEST_INFINITE (so many steps
into the training a loss is infinite, once), TEST_FUSED (whether the optimiser is), TEST_MEASURE (that no noise is
measured), TEST_EVALUATION (`25 0.4`: the first worker evaluates after every 25 steps, for 0.4 seconds), TEST_BYPASS
(whether a method of the model is called instead of the model). A batch takes at least as many seconds as the file
`pace` says, if there is one: so many, and so many more for each of its examples.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Tuple

import torch
from problem import Numbered, mean_loss, network, optimizer_of, schedule_of
from torch import nn

import moira

directory = Path(os.environ["TEST_DIRECTORY"])
pace = directory / "pace"
noise = float(os.environ.get("TEST_NOISE", "0"))


class SlowToSave:
    """A state that takes its time to be written."""

    def state_dict(self) -> SlowToSave:
        return self

    def load_state_dict(self, _state: object) -> None:
        """There is nothing in it."""

    def __deepcopy__(self, _: object) -> SlowToSave:
        return self

    def __reduce__(self) -> Tuple[Any, Tuple[()]]:
        time.sleep(float(os.environ["TEST_SLOW_SAVE"]))
        return str, ()


def take_time(began: float, examples: int) -> None:
    """Until the batch has lasted as long as it should."""
    while pace.exists():
        seconds, each = map(float, pace.read_text().split())
        left = began + seconds + each * examples - time.monotonic()
        if left <= 0.0:
            return
        time.sleep(min(left, 0.01))


def clip() -> None:
    """As loops do between the backward pass and the step."""
    if "TEST_CLIP" in os.environ:
        nn.utils.clip_grad_norm_(net.parameters(), float(os.environ["TEST_CLIP"]))


def send_term(when: str) -> None:
    """To this process, once in the life of the job."""
    sent = directory / "sent"
    if os.environ.get("TEST_TERM") == when and training.rank == 0 and not sent.exists():
        sent.touch()
        os.kill(os.getpid(), signal.SIGTERM)


def evaluate() -> None:
    """As loops do now and then after a step, on one worker only."""
    each, seconds = os.environ.get("TEST_EVALUATION", "0 0").split()
    if int(each) > 0 and training.rank == 0 and int(training.progress) % int(each) == int(each) - 1:
        time.sleep(float(seconds))


training = moira.init(seed=3)
examples = Numbered(int(os.environ.get("TEST_EXAMPLES", "1000")))
net: Any = network(seed=5)
optimizer: Any = optimizer_of(net, os.environ.get("TEST_OPTIMIZER", "SGD"), fused="TEST_FUSED" in os.environ)
checkpoint_seconds = os.environ.get("TEST_CHECKPOINT_SECONDS", "1000")
infinite_at = int(os.environ.get("TEST_INFINITE", "-1"))
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if os.environ.get("TEST_PRECISION") == "scaled" else None
data: Any = torch.utils.data.DataLoader(
    examples,
    batch_size=int(os.environ.get("TEST_BATCH", "64")),
    shuffle=True,
    num_workers=int(os.environ.get("TEST_LOADERS", "0")),
)
net, optimizer, data = moira.wrap(
    net,
    optimizer,
    data,
    scaler=scaler,
    measure_noise=False if "TEST_MEASURE" in os.environ else None,
    checkpoint_every="auto" if checkpoint_seconds == "auto" else float(checkpoint_seconds),
)
schedule = schedule_of(optimizer)
moira.register(schedule=schedule)
if "TEST_SLOW_SAVE" in os.environ:
    moira.register(slow=SlowToSave())


def note(step: moira.Step) -> None:
    if training.rank == 0:
        line = {"number": step.number, "loss": step.loss, "batch": step.batch, "workers": step.workers}
        line.update({"progress": step.progress, "passes": step.passes, "rate": optimizer.param_groups[0]["lr"]})
        with open(directory / "steps.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")


last_of_pass = [int(os.environ["TEST_LAST"])] if "TEST_LAST" in os.environ else None
moira.on_step(note)
for epoch in moira.epochs(int(os.environ.get("TEST_EPOCHS", "3"))):
    for inputs, outputs, numbers in data:
        take_time(began=time.monotonic(), examples=len(numbers))
        optimizer.zero_grad()
        predicted = net.module(inputs) if "TEST_BYPASS" in os.environ else net(inputs)
        loss = nn.functional.mse_loss(predicted, outputs)
        if training.progress == infinite_at:
            infinite_at = -1
            loss = loss * float("inf")
        if noise > 0.0:
            # The gradient of this is noise of a batch of so many examples: its mean is nothing.
            drawn = (torch.randn_like(weight) * noise / len(numbers) ** 0.5 for weight in net.parameters())
            loss = loss + sum((weight * one).sum() for weight, one in zip(net.parameters(), drawn))
        if training.progress == 10:
            send_term("step")
        if numbers.tolist()[-1:] == last_of_pass:
            send_term("last")
        if scaler is None:
            loss.backward()
            clip()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            if "TEST_CLIP" in os.environ:
                scaler.unscale_(optimizer)
                clip()
            scaler.step(optimizer)
            scaler.update()
        moira.report(loss=loss)
        evaluate()
        with open(directory / "examples.jsonl", "a") as file:
            file.write(json.dumps({"epoch": epoch, "numbers": numbers.tolist()}) + "\n")
    schedule.step()
    if epoch == 0:
        send_term("boundary")
if training.rank == 0:
    (directory / "final.json").write_text(json.dumps({"loss": mean_loss(net.module, examples)}))
