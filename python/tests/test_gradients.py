"""Gradients of several passes are complete at the step, whichever passes used a parameter."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from moira.training.gradients import Gradients
from moira.training.sampler import Share


def two_passes(workers: int) -> tuple[Gradients, list[Any]]:
    """Two parameters, of which the last pass uses only the first."""
    often, once = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    gradients = Gradients(torch.optim.SGD([often, once], lr=0.1))
    gradients.begin_step(Share(size=4 * workers, passes=[[0, 1, 2], [3]]), workers, measures=False)
    gradients.begin_pass(0)
    (2 * often + 3 * once).sum().backward()
    assert (float(often.grad), float(once.grad)) == (0.0, 0.0), "nothing to be seen before the last pass"
    gradients.begin_pass(1)
    (6 * often).sum().backward()
    return gradients, [often, once]


def test_a_parameter_that_the_last_pass_does_not_use_keeps_its_gradient() -> None:
    gradients, (often, once) = two_passes(workers=1)
    gradients.complete(loss_scale=1.0)
    assert float(often.grad) == pytest.approx(0.75 * 2 + 0.25 * 6)
    assert float(once.grad) == pytest.approx(0.75 * 3)


def test_several_workers_say_that_they_cannot_exchange_it() -> None:
    gradients, _ = two_passes(workers=2)
    with pytest.raises(RuntimeError, match="1 parameters were used by some passes of a step and not by its last one"):
        gradients.complete(loss_scale=1.0)
