"""A training whose model learns running means beside its parameters, and has a note that it does not save. Every worker
writes down what it has of them after every step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from problem import Numbered, optimizer_of
from torch import nn

import moira

training = moira.init(seed=3)
directory = Path(os.environ["TEST_DIRECTORY"])
net: Any = nn.Sequential(nn.BatchNorm1d(10), nn.Linear(10, 1))
net.register_buffer("own", torch.zeros(1), persistent=False)
optimizer: Any = optimizer_of(net)
data: Any = torch.utils.data.DataLoader(Numbered(256), batch_size=64, shuffle=True)
net, optimizer, data = moira.wrap(net, optimizer, data)


def note(_: moira.Step) -> None:
    means = net.module[0].running_mean.tolist()
    line = {
        "rank": training.rank,
        "means": means,
        "own": float(net.own),
        "seen": int(net.module[0].num_batches_tracked),
    }
    with open(directory / f"buffers-{training.rank}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


moira.on_step(note)
for _ in moira.epochs(2):
    net.own.fill_(float(training.rank))
    for inputs, outputs, _numbers in data:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(inputs), outputs).backward()
        optimizer.step()
