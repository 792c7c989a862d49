"""A training for two kinds of device: one core at full speed, and two cores that may be used for 60 % of the time.

With `parallel` the work is one large multiplication, which uses all the cores there are: 1.2 cores' worth on the second
kind. With `serial` it is done by one core while a helper for every further core polls for input without rest, as some
data loaders do, and takes away half of what the second kind has.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

import torch
from torch import nn

import moira

SIZE = 700


def poll() -> None:
    """Burns a core as long as its parent lives."""
    parent = os.getppid()
    while os.getppid() == parent:
        pass


class Work(nn.Module):
    """A parameter, and work that takes its time."""

    def __init__(self, threads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self._matrix = torch.randn(SIZE, SIZE)
        torch.set_num_threads(threads)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            product = self._matrix @ self._matrix
        return (self.weight * batch.mean() + 0.0 * product[0, 0]) ** 2


def main() -> None:
    is_parallel = sys.argv[1] == "parallel"
    cores = int(os.environ["OMP_NUM_THREADS"])
    moira.init()
    if not is_parallel:
        for _ in range(cores - 1):
            multiprocessing.get_context("spawn").Process(target=poll, daemon=True).start()
    model: Any = Work(cores if is_parallel else 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    data: Any = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(6400, 1)), batch_size=16)
    model, optimizer, data = moira.wrap(model, optimizer, data)
    for _ in moira.epochs(1000):
        for (batch,) in data:
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
