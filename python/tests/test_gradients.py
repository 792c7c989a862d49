"""Gradients of several passes are complete at the step, whichever passes used a parameter."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Iterator

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from moira.training.gradients import Gradients
from moira.training.noise import NoiseEstimator
from moira.training.sampler import Share
from moira.training.scaling import rule_for
from moira.training.stepping import Stepper


class Two(nn.Module):
    """Two parameters, of which a pass may leave the second alone."""

    def __init__(self) -> None:
        super().__init__()
        self.often, self.once = (nn.Parameter(torch.ones(1)) for _ in range(2))

    def forward(self, often: float, once: float) -> Tensor:
        return (often * self.often + once * self.once if once else often * self.often).sum()

    def seen(self) -> tuple[float, float]:
        assert self.often.grad is not None and self.once.grad is not None
        return float(self.often.grad), float(self.once.grad)


def begun(model: Two, workers: int = 1) -> Gradients:
    """A step of two passes, with three examples and with one."""
    gradients = Gradients(torch.optim.SGD(model.parameters(), lr=0.1))
    gradients.begin_step(Share(size=4 * workers, passes=[[0, 1, 2], [3]]), workers, measures=False)
    gradients.begin_pass(0)
    return gradients


def two_passes(model: Two) -> Gradients:
    gradients = begun(model)
    model(2.0, 3.0).backward()
    assert model.seen() == (0.0, 0.0), "nothing to be seen before the last pass"
    gradients.begin_pass(1)
    return gradients


def test_a_parameter_that_the_last_pass_does_not_use_keeps_its_gradient() -> None:
    model = Two()
    two_passes(model)
    model(6.0, 0.0).backward()
    assert model.seen() == pytest.approx((0.75 * 2 + 0.25 * 6, 0.75 * 3))


def test_the_losses_of_a_pass_may_be_sent_back_one_after_the_other() -> None:
    model = Two()
    gradients = begun(model)
    model(1.5, 3.0).backward()
    model(0.5, 0.0).backward()
    gradients.begin_pass(1)
    model(2.0, 1.0).backward()
    model(4.0, 0.0).backward()
    assert model.seen() == pytest.approx((0.75 * 2 + 0.25 * 6, 0.75 * 3 + 0.25))


def test_gradients_that_are_only_looked_at_change_nothing() -> None:
    model = Two()
    two_passes(model)
    torch.autograd.grad(model(50.0, 50.0), list(model.parameters()))
    model(6.0, 0.0).backward()
    assert model.seen() == pytest.approx((0.75 * 2 + 0.25 * 6, 0.75 * 3))


def test_what_was_not_forgotten_before_a_step_belongs_to_it() -> None:
    model = Two()
    model(10.0, 20.0).backward()
    two_passes(model)
    model(6.0, 0.0).backward()
    assert model.seen() == pytest.approx((10 + 0.75 * 2 + 0.25 * 6, 20 + 0.75 * 3))


def test_a_lone_worker_may_leave_the_last_pass_out() -> None:
    model = Two()
    two_passes(model).complete(loss_scale=1.0)
    assert model.seen() == pytest.approx((0.75 * 2, 0.75 * 3))


def test_several_workers_cannot_exchange_without_the_last_pass() -> None:
    model = Two()
    gradients = begun(model, workers=2)
    model(2.0, 3.0).backward()
    gradients.begin_pass(1)
    with pytest.raises(
        RuntimeError, match=r"step\(\) was called without loss.backward\(\) for the last batch of a step"
    ):
        gradients.complete(loss_scale=1.0)


@pytest.fixture
def lone_group(tmp_path: Path) -> Iterator[Any]:
    """A process group of one, which exchanges as any other does."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("in_buckets", [False, True])
@pytest.mark.parametrize("once", [0.0, 1.0])
def test_exchanged_gradients_are_of_all_passes(lone_group: Any, in_buckets: bool, once: float) -> None:
    model = Two()
    parallel = DistributedDataParallel(
        model, process_group=lone_group, find_unused_parameters=True, gradient_as_bucket_view=in_buckets
    )
    gradients = begun(model, workers=2)
    parallel.register_comm_hook(lone_group, gradients.exchange)
    for _ in range(3):
        with parallel.no_sync():
            parallel(2.0, 3.0).backward()
        assert model.seen() == (0.0, 0.0)
        gradients.begin_pass(1)
        parallel(6.0, once).backward()
        # Half of the mean over two workers, of which the other brings nothing.
        assert model.seen() == pytest.approx(((0.75 * 2 + 0.25 * 6) / 2, (0.75 * 3 + 0.25 * once) / 2))
        model.zero_grad()
        gradients.begin_step(Share(size=8, passes=[[0, 1, 2], [3]]), 2, measures=False)
        gradients.begin_pass(0)


def measured(model: Two, *losses: tuple[float, float]) -> Gradients:
    """A first pass, and a last one that is sent back in these pieces, of equal weight."""
    gradients = Gradients(torch.optim.SGD(model.parameters(), lr=0.1))
    gradients.begin_step(Share(size=4, passes=[[0, 1], [2, 3]]), 1, measures=True)
    gradients.begin_pass(0)
    model(2.0, 0.0).backward()
    gradients.begin_pass(1)
    for loss in losses:
        model(*loss).backward()
    return gradients


def test_the_squares_of_passes_and_of_their_mean_are_measured() -> None:
    parts, mean = measured(Two(), (6.0, 0.0)).squares(loss_scale=1.0)
    assert (parts, mean) == ([2.0**2 + 6.0**2], [4.0**2])


def test_a_pass_that_is_sent_back_in_pieces_is_not_measured_wrongly(caplog: pytest.LogCaptureFixture) -> None:
    parts, mean = measured(Two(), (5.0, 0.0), (1.0, 0.0)).squares(loss_scale=1.0)
    assert math.isnan(parts[0]) and math.isnan(mean[0])
    assert "expected one loss.backward() for each batch" in caplog.text


def test_a_parameter_that_is_never_used_does_not_keep_adam_from_being_measured_as_it_sees() -> None:
    model = Two()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    gradients = Gradients(optimizer)
    for _ in range(8):
        gradients.begin_step(Share(size=1, passes=[[0]]), 1, measures=True)
        gradients.begin_pass(0)
        optimizer.zero_grad()
        model(1000.0, 0.0).backward()
        compared = gradients.compare_with_before(loss_scale=1.0)
        optimizer.step()
    assert gradients.is_preconditioned
    assert compared is not None
    assert compared == [[pytest.approx(1.0)]] * 3, "divided by its own size it is one"


def test_a_restart_forgets_nothing_of_the_noise_that_adam_sees() -> None:
    """Also where the first step after it is not measured."""
    model = Two()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        model(1.0, 1.0).backward()
        optimizer.step()
    noise = NoiseEstimator(1)
    noise.measured_as_adam_sees(True)
    noise.observe([8.0], [5.0], 2, 2.0)
    stepper = Stepper(
        optimizer,
        scaler=None,
        gradients=Gradients(optimizer),
        noise=noise,
        rule=rule_for("auto", optimizer_adapts=True),
        designed=1,
        measures=True,
    )
    stepper.begin_step(Share(size=1, passes=[[0]]), workers=1, number=101, progress=101.0)
    assert noise.sqr == pytest.approx(2.0)
