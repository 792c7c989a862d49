"""A small problem to train on: a network that learns a noisy line. Every example knows its number."""

from __future__ import annotations

from typing import Any, Tuple

import torch
from torch import Tensor, nn

Example = Tuple[Tensor, Tensor, int]


class Numbered(torch.utils.data.Dataset[Example]):
    """So many examples of the line."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(count, 10, generator=generator)
        noise = 0.3 * torch.randn(count, 1, generator=generator)
        self.outputs = self.inputs @ torch.randn(10, 1, generator=generator) + noise

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Example:
        return self.inputs[index], self.outputs[index], index


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))


def optimizer_of(model: nn.Module, kind: str = "SGD", fused: bool = False) -> Any:
    rate = 0.05 if kind == "SGD" else 0.005
    return getattr(torch.optim, kind)(model.parameters(), lr=rate, fused=fused or None)


def schedule_of(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def mean_loss(model: nn.Module, data: Numbered) -> float:
    """Over all examples."""
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(data.inputs), data.outputs))


def undisturbed_loss(seed: int, epochs: int, count: int = 1000) -> float:
    """The loss at the end of a plain loop, without Moira, on one worker, with the designed batch."""
    data = Numbered(count)
    model = network(seed)
    optimizer = optimizer_of(model)
    schedule = schedule_of(optimizer)
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    for _ in range(epochs):
        for inputs, outputs, _numbers in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), outputs).backward()
            optimizer.step()
        schedule.step()
    return mean_loss(model, data)
