"""An image classifier made elastic: a small convolutional network on generated pictures of three shapes.

    python examples/image_classifier.py                                            # on its own, as any script
    moira submit --workers 1..2 --batch 64..512 -- python examples/image_classifier.py  # under Moira

It takes about a minute on one core. Lines that are there for Moira end in `# Moira`.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import moira  # Moira

SIDE = 24


def pictures(count: int, seed: int) -> TensorDataset:
    """Squares, discs and crosses, of any size and anywhere, under noise."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(3, (count,), generator=generator)
    place = torch.rand(count, 2, 1, 1, generator=generator) * (SIDE - 12) + 6
    size = torch.rand(count, 1, 1, generator=generator) * 3 + 3
    grid = torch.stack(torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")).float()
    across, down = (grid - place).abs().unbind(dim=1)
    square = torch.maximum(across, down) <= size
    disc = across**2 + down**2 <= size**2
    cross = (torch.minimum(across, down) <= 1) & square
    shapes = torch.stack([square, disc, cross], dim=1)[torch.arange(count), kinds].float()
    noise = torch.randn(count, SIDE, SIDE, generator=generator)
    return TensorDataset((shapes + 0.7 * noise).unsqueeze(1), kinds)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (SIDE // 4) ** 2, 64), nn.ReLU(), nn.Linear(64, 3),
    )  # fmt: skip


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    model.eval()
    inputs, kinds = data.tensors
    right: Tensor = model(inputs).argmax(dim=1) == kinds
    model.train()
    return float(right.float().mean())


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--epochs", type=int, default=10)
    arguments.add_argument("--examples", type=int, default=6000)
    arguments.add_argument("--seed", type=int, default=0)
    chosen = arguments.parse_args()

    moira.init(seed=chosen.seed)  # Moira
    torch.manual_seed(chosen.seed)
    model: nn.Module = network()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(pictures(chosen.examples, seed=1), batch_size=64, shuffle=True)
    model, optimizer, loader = moira.wrap(model, optimizer, loader)  # Moira
    test = pictures(1000, seed=2)
    for epoch in moira.epochs(chosen.epochs):  # Moira: was range(chosen.epochs)
        for inputs, kinds in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), kinds)
            loss.backward()
            optimizer.step()
            moira.report(loss=loss)  # Moira
        print(f"epoch {epoch}: accuracy {accuracy(model, test):.3f}", flush=True)


if __name__ == "__main__":
    main()
