"""Learning rates that follow the batch."""

from __future__ import annotations

import math

import pytest

from moira.training.noise import NoiseEstimator, gain
from moira.training.scaling import AdamScale, AdaScale, Legw, Linear, SquareRoot, rule_for


def noisy() -> NoiseEstimator:
    """Two groups: of the first the signal is 2 and the noise 6, of the second 1 and 0."""
    noise = NoiseEstimator(2)
    noise.observe([8.0, 1.0], [5.0, 1.0], 2, 2.0)
    return noise


def test_adascale_follows_the_noise_of_each_group() -> None:
    factors = AdaScale().factors(noisy(), 4.0, 0.0)
    assert factors[0] == pytest.approx((6.0 + 2.0) / (6.0 / 4.0 + 2.0))
    assert factors[1] == pytest.approx(1.0, abs=1e-5)


def test_adam_takes_the_square_root_of_that() -> None:
    assert AdamScale().factors(noisy(), 4.0, 0.0)[0] == pytest.approx(math.sqrt(gain(2.0, 6.0, 4.0)))


def test_linear_and_square_root_follow_the_batch() -> None:
    assert Linear().factors(noisy(), 4.0, 0.0) == [4.0, 4.0]
    assert SquareRoot().factors(noisy(), 4.0, 0.0) == [2.0, 2.0]


def test_legw_warms_up_longer_with_a_larger_batch() -> None:
    # Two epochs of 1,000 examples in steps of 100 are 20 steps of the designed batch, and 80 at four times that batch.
    rule = Legw(warmup_epochs=2, examples=1000, batch=100)
    assert rule.factors(noisy(), 4.0, 40.0) == [pytest.approx(1.0)] * 2, "half way, half of the square root of four"
    assert rule.factors(noisy(), 4.0, 80.0) == [pytest.approx(2.0)] * 2
    assert rule.factors(noisy(), 4.0, 800.0) == [pytest.approx(2.0)] * 2
    assert rule.factors(noisy(), 1.0, 10.0) == [pytest.approx(0.5)] * 2, "at the designed batch it warms up too"
    assert Legw(0, 1000, 100).factors(noisy(), 4.0, 0.0) == [2.0, 2.0]


def test_the_rule_is_chosen_by_name_or_by_the_optimiser() -> None:
    assert isinstance(rule_for("auto", optimizer_adapts=False), AdaScale)
    assert isinstance(rule_for("auto", optimizer_adapts=True), AdamScale)
    assert isinstance(rule_for("sqrt", optimizer_adapts=True), SquareRoot)
    own = Legw(1, 10, 1)
    assert rule_for(own, optimizer_adapts=False) is own
    with pytest.raises(ValueError, match=r"expected one of auto, adascale, adamscale, linear, sqrt.*found 'cubic'"):
        rule_for("cubic", optimizer_adapts=False)
    with pytest.raises(ValueError, match="positive number of examples"):
        Legw(1, 0, 1)
