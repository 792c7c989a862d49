"""A training for two kinds of device: one core at full speed, and two cores that may be used for 60 % of the time.

With `parallel` the work is many sums, of which every core there is takes the next: 1.2 cores' worth on the second kind.
They are running sums, where each addition waits for the one before, so that two cores that share their adders do twice
the work of one. With `serial` one core does them all, while a helper for every further core polls for input without
rest, as some data loaders do, and takes away half of what the second kind has.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterator

import torch
from torch import nn

import moira

NUMBERS = 100_000
SUMS = 300


def poll() -> None:
    """Burns a core as long as its parent lives."""
    parent = os.getppid()
    while os.getppid() == parent:
        pass


class Work(nn.Module):
    """A parameter, and work that takes its time."""

    def __init__(self, cores: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self._numbers = torch.randn(NUMBERS, dtype=torch.float64)
        self._others = cores - 1
        self._pool = ThreadPoolExecutor(cores)
        torch.set_num_threads(1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        left = iter(range(SUMS))
        others = [self._pool.submit(self._sum, left) for _ in range(self._others)]
        self._sum(left)
        for other in others:
            other.result()
        return (self.weight * batch.mean()) ** 2

    def _sum(self, left: Iterator[int]) -> None:
        """Takes one after the other, as long as there are any; several threads may do so at once."""
        for _ in left:
            self._numbers.cumsum(0)


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
