"""Gradients of known mean and covariance: the loss of an example x is |w - x|²/2, so its gradient is w - x."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List

import torch
from torch import nn

import moira

DIMENSIONS, EXAMPLES, SIGNAL, NOISE = 800, 20_000, 2.0, 48.0
BATCH, STEPS = 8, 2000

training = moira.init(seed=1)
generator = torch.Generator().manual_seed(11)
# Half of the coordinates are a hundred times as large: an optimiser with second moments sees no difference.
size = torch.ones(DIMENSIONS)
if os.environ.get("TEST_OPTIMIZER") == "Adam":
    size[: DIMENSIONS // 2] = 100.0
mean = size * (SIGNAL / DIMENSIONS) ** 0.5
spread = size * (NOISE / DIMENSIONS) ** 0.5
examples = mean + spread * torch.randn(EXAMPLES, DIMENSIONS, generator=generator)


class Point(nn.Module):
    """One point in space."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(DIMENSIONS))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return ((self.place - batch) ** 2).sum(dim=1).mean() / 2


kind = os.environ.get("TEST_OPTIMIZER", "SGD")
point: Any = Point()
# The point stands still, so that what is estimated does too.
optimizer: Any = getattr(torch.optim, kind)(point.parameters(), lr=0.0)
data: Any = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(examples), batch_size=BATCH, shuffle=True)
point, optimizer, data = moira.wrap(point, optimizer, data)
asked = [int(text) for text in os.environ["TEST_PASSES"].split(",")]
found: List[Dict[str, float]] = []
since = 0


def ask(passes: int) -> None:
    """Wants so many passes a step from now on, as the service would."""
    if training.rank == 0:
        fresh = Path(os.environ["MOIRA_TUNING_FILE"] + ".new")
        fresh.write_text(json.dumps({"local_batch": BATCH, "accumulation": passes - 1}))
        fresh.replace(os.environ["MOIRA_TUNING_FILE"])


def conclude(parts: int) -> None:
    """Writes down what was estimated, beside what the examples at hand have, which is not quite what they were drawn
    from. The second moment that Adam divides by is that of the steps it has seen: the mean squared, and the variance at
    that batch."""
    gradient, variance = -examples.mean(dim=0), examples.var(dim=0) / BATCH
    if kind == "Adam":
        seen = gradient**2 + variance / parts
        gradient, variance = gradient / seen.sqrt(), variance / seen
    noise = training.noise
    assert noise is not None
    true = {"true_sqr": float((gradient**2).sum()), "true_var": float(variance.sum())}
    found.append({"sqr": noise.sqr, "var": noise.var, "parts": parts, **true})
    noise.reset()


def count(step: moira.Step) -> None:
    global since
    if step.passes != asked[len(found)]:
        since = step.number
    elif step.number - since == STEPS:
        conclude(step.workers * step.passes)
        since = step.number
        if len(found) < len(asked):
            ask(asked[len(found)])


moira.on_step(count)
for _ in moira.epochs(1000):
    for (batch,) in data:
        if len(found) == len(asked):
            break
        optimizer.zero_grad()
        point(batch).backward()
        optimizer.step()
    if len(found) == len(asked):
        break
if training.rank == 0:
    Path(os.environ["TEST_DIRECTORY"], "noise.json").write_text(json.dumps(found))
