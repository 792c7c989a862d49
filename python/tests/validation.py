"""A training for tests that evaluates on one worker only, TEST_WHO: after every third step, and after every epoch.

Every worker writes down how long its steps took."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from problem import Numbered, network, optimizer_of
from torch import nn

import moira

directory = Path(os.environ["TEST_DIRECTORY"])
EVALUATION_SECONDS = 1.0


def write(name: str, **line: float) -> None:
    with open(directory / name, "a") as file:
        file.write(json.dumps(line) + "\n")


def evaluate() -> None:
    if training.rank == int(os.environ["TEST_WHO"]):
        time.sleep(EVALUATION_SECONDS)
        write("evaluated.jsonl", seconds=EVALUATION_SECONDS)


training = moira.init(seed=3)
net: Any = network(seed=5)
optimizer: Any = optimizer_of(net, "SGD")
data: Any = torch.utils.data.DataLoader(Numbered(600), batch_size=60, shuffle=True)
net, optimizer, data = moira.wrap(net, optimizer, data)


def note(step: moira.Step) -> None:
    write(f"steps.{training.rank}.jsonl", seconds=step.seconds, exchange=step.exchange_seconds)


moira.on_step(note)
for _ in moira.epochs(3):
    for number, (inputs, outputs, _numbers) in enumerate(data):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(inputs), outputs).backward()
        optimizer.step()
        if number % 3 == 2:
            evaluate()
    evaluate()
