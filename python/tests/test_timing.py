"""What counts as a step, and what of it as the exchange of gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List

import pytest
from workers import Run

pytest.importorskip("torch")

from moira.training.timing import StepTime, StepTimes, Waits

VALIDATION = Path(__file__).parent / "validation.py"


def told(*workers: List[float]) -> List[float]:
    """The sum of what the workers told each other: before and after the step."""
    parts = [Waits(rank, len(workers)).told(*spent) for rank, spent in enumerate(workers)]
    return [sum(column) for column in zip(*parts)]


def test_a_worker_that_waits_for_one_that_evaluates_exchanges_nothing_meanwhile() -> None:
    # The first evaluated for 5 s after its step, and the second waited for it when they agreed.
    sums = told([0.0, 5.0], [0.0, 0.01])
    first = Waits(0, 2).step_time(work=0.2, gradients=0.05, agreeing=0.002, told=sums)
    second = Waits(1, 2).step_time(work=0.2, gradients=0.05, agreeing=4.992, told=sums)
    assert first.exchange == pytest.approx(0.052)
    assert second.exchange == pytest.approx(0.052)
    assert first.work == pytest.approx(second.work) == pytest.approx(0.202)


def test_a_worker_that_saved_its_state_before_a_step_keeps_others_waiting_and_not_exchanging() -> None:
    # The first saved for 3 s between the steps; the second was through with its own gradients long before.
    sums = told([3.0, 0.0], [0.0, 0.0])
    first = Waits(0, 2).step_time(work=0.2, gradients=0.04, agreeing=0.001, told=sums)
    second = Waits(1, 2).step_time(work=3.2, gradients=3.04, agreeing=0.001, told=sums)
    assert first.exchange == pytest.approx(0.041)
    assert second.exchange == pytest.approx(0.041)
    assert second.work == pytest.approx(first.work)


def test_a_worker_that_computes_longer_is_still_waited_for_by_exchanging() -> None:
    sums = told([0.0, 0.0], [0.0, 0.0])
    assert Waits(1, 2).step_time(work=1.0, gradients=0.8, agreeing=0.0, told=sums).exchange == pytest.approx(0.8)


def test_a_lone_worker_exchanges_nothing() -> None:
    alone = Waits(0, 1).step_time(work=0.3, gradients=0.0, agreeing=0.001, told=told([2.0, 0.1]))
    assert alone == StepTime(pytest.approx(0.301), 0.0, 0.1)  # type: ignore[arg-type]


def test_what_every_step_ends_with_is_part_of_it_and_an_evaluation_is_not() -> None:
    times = StepTimes()
    for number in range(100):
        times.add(StepTime(0.1, 0.02, 7.0 if number % 10 == 9 else 0.05))
    assert times.mean() == pytest.approx(0.15)
    assert times.whole(StepTime(0.1, 0.02, 7.0)) == pytest.approx(0.15)
    assert times.take(1) == {"step_seconds": pytest.approx(0.15), "compute_seconds": pytest.approx(0.13)}
    assert times.take(1) == {}, "nothing is told twice"


def test_an_evaluation_after_one_of_two_steps_is_passed_over() -> None:
    times = StepTimes()
    for after in (9.0, 9.0, 0.01):
        times.add(StepTime(0.1, 0.0, after))
    assert times.mean() == pytest.approx(0.11), "the first is never typical, the shorter of two is"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    found = Run(tmp_path / "run", VALIDATION)
    yield found
    found.kill()


@pytest.mark.parametrize("who", [0, 1])
def test_time_of_an_evaluation_is_booked_nowhere_on_any_worker(run: Run, who: int) -> None:
    run.start(2, TEST_WHO=str(who))
    assert run.wait() == [0, 0], run.output()
    evaluated = sum(line["seconds"] for line in run.records("evaluated.jsonl"))
    assert evaluated == 12.0, "in a loop and after an epoch"
    for rank in range(2):
        steps = run.records(f"steps.{rank}.jsonl")
        assert len(steps) == 30
        assert sum(step["exchange"] for step in steps) < evaluated / 2, f"worker {rank} waited, and exchanged nothing"
        assert sum(step["seconds"] for step in steps) < evaluated / 2, f"an evaluation is no step of worker {rank}"
