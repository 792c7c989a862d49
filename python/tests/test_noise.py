"""The estimators of gradient noise, on gradients whose mean and covariance are known."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Dict, List

import pytest
from workers import Run

from moira.training.noise import NoiseEstimator, gain

pytest.importorskip("torch")

QUADRATIC = Path(__file__).parent / "quadratic.py"


def estimates(directory: Path, workers: int, passes: str, **environ: str) -> List[Dict[str, float]]:
    """What a script on so many workers finds with each of these numbers of passes a step."""
    first = str(int(passes.split(",", maxsplit=1)[0]) - 1)
    said = {"MOIRA_BATCH": "8", "MOIRA_BATCH_MAX": "1024", "MOIRA_LOCAL_BATCH": "8", "MOIRA_ACCUMULATION": first}
    run = Run(directory, QUADRATIC).start(workers, **said, **environ, TEST_PASSES=passes)
    assert run.wait() == [0] * workers, run.output()
    found: List[Dict[str, float]] = json.loads((run.directory / "noise.json").read_text())
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_the_estimate_of_a_quadratic_problem_is_right(tmp_path: Path, workers: int) -> None:
    """A lone worker with one pass a step compares successive gradients; all others compare the parts of a step."""
    found = estimates(tmp_path, workers, passes="1,2,4")
    assert [noise["parts"] for noise in found] == [workers, 2 * workers, 4 * workers]
    for noise in found:
        assert noise["sqr"] == pytest.approx(noise["true_sqr"], rel=0.05), noise
        assert noise["var"] == pytest.approx(noise["true_var"], rel=0.05), noise


def test_adams_gradients_are_measured_as_it_sees_them(tmp_path: Path) -> None:
    """Coordinates of very different size weigh alike once they are divided by their second moment."""
    (found,) = estimates(tmp_path, 1, passes="4", TEST_OPTIMIZER="Adam")
    assert found["sqr"] == pytest.approx(found["true_sqr"], rel=0.1)
    assert found["var"] == pytest.approx(found["true_var"], rel=0.1)


def test_estimates_of_a_lone_worker_are_dropped_once_there_are_several_parts() -> None:
    noise = NoiseEstimator(1)
    for _ in range(50):
        noise.observe_lone([100.0], [100.0], [20.0], 1.0)
    noise.observe([8.0], [5.0], 2, 2.0)
    assert noise.sqr == pytest.approx(2.0)
    assert noise.var == pytest.approx(6.0)


def test_what_was_measured_before_adam_could_be_trusted_is_forgotten() -> None:
    noise = NoiseEstimator(1)
    noise.observe([8e6], [5e6], 2, 2.0)
    known = []
    for is_preconditioned in [False, True]:
        noise.measured_as_adam_sees(is_preconditioned)
        known.append(noise.is_known)
    assert known == [True, False]
    noise.observe([8.0], [5.0], 2, 2.0)
    restored = NoiseEstimator(1)
    restored.load_state_dict(noise.state_dict())
    restored.measured_as_adam_sees(True)
    assert restored.sqr == pytest.approx(2.0), "a restart forgets nothing"


def test_the_past_fades_with_examples_not_with_steps() -> None:
    def after(scale: float, steps: int) -> float:
        noise = NoiseEstimator(1)
        for square in [1.0] * steps + [3.0] * steps:
            noise.observe([square], [square], 2, scale)
        return noise.sqr

    assert after(1.0, 400) == pytest.approx(after(4.0, 100), rel=1e-2)


def test_norms_that_are_not_finite_are_passed_over() -> None:
    noise = NoiseEstimator(1)
    noise.observe([float("inf")], [float("nan")], 2, 1.0)
    assert not noise.is_known
    noise.observe([8.0], [5.0], 2, 2.0)
    assert noise.sqr == pytest.approx(2.0)


def test_the_gain_is_adascales() -> None:
    draw = random.Random(7)
    for _ in range(100):
        sqr, var, scale = draw.uniform(0.1, 10), draw.uniform(0.1, 100), draw.uniform(1, 64)
        assert gain(sqr, var, scale) == pytest.approx((var + sqr) / (var / scale + sqr))
    assert gain(0.0, 0.0, 4.0) == 1.0, "no gradient at all"
    assert gain(1.0, 1e9, 4.0) == pytest.approx(4.0), "all noise: four times the batch is four steps"
    assert gain(1.0, 0.0, 4.0) == 1.0, "no noise: a larger batch is worth nothing"


def test_a_state_goes_on_where_it_was_saved() -> None:
    saved, other = NoiseEstimator(2), NoiseEstimator(2)
    saved.observe([8.0, 3.0], [5.0, 2.0], 2, 2.0)
    other.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    values: List[float] = [other.sqr, other.var]
    assert values == [saved.sqr, saved.var]
