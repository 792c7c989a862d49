"""Real trainings under the real service: they make room for others and take it back, and the result is the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest
from conftest import PYTHON_FOLDER, Service, serving
from test_training import LOOP, assert_every_example_once_a_pass, assert_same_steps
from workers import Run

from moira.client import JobHandle, JobView

pytest.importorskip("torch")

EPOCHS = 12
TWO_DEVICES = """
[[accelerators]]
kind = "virtual"
count = 2
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> List[Dict[str, Any]]:
    """Every step of a run on one worker that nobody disturbed."""
    found = Run(tmp_path_factory.mktemp("undisturbed"), LOOP).start(1, TEST_EPOCHS=str(EPOCHS))
    assert found.wait() == [0], found.output()
    return found.records()


@pytest.fixture(params=["60s", "0s"], ids=["in place", "by restarts"])
def two_devices(request: pytest.FixtureRequest) -> Iterator[Service]:
    """A service with two devices that changes workers in place, and one that always restarts."""
    yield from serving(f'resize_within = "{request.param}"', TWO_DEVICES)


def submit_loop(service: Service, directory: Path, **options: Any) -> JobHandle:
    environ = {
        "PYTHONPATH": str(PYTHON_FOLDER / "src"),
        "TEST_DIRECTORY": str(directory),
        "TEST_EPOCHS": str(EPOCHS),
        **options.pop("env", {}),
    }
    return service.client.submit([sys.executable, str(LOOP)], env=environ, **options)


def holds(workers: int) -> Callable[[JobView], bool]:
    return lambda view: view.state == "running" and view.workers.have == workers


def test_a_job_shrinks_for_a_second_one_and_grows_back_when_it_leaves(
    two_devices: Service, tmp_path: Path, undisturbed: List[Dict[str, Any]]
) -> None:
    # Two workers are a little faster than one: worth a device that is free, but not one that somebody waits for.
    records = Run(tmp_path / "run", LOOP).pace(0.1)
    job = submit_loop(
        two_devices,
        records.directory,
        workers=(1, 2),
        batch=(64, 64),
        checkpoint={"restart_cost": "1s"},
        env={"TEST_EXAMPLE_SECONDS": "0.001"},
    )
    two_devices.until_job(job, holds(2), "it has both devices")
    records.await_records(len(records.records()) + 5)
    second = two_devices.client.submit(["sleep", "3"], workers=1)
    two_devices.until_job(second, lambda view: view.state == "running", "the second job runs")
    two_devices.until_job(job, holds(1), "the first has made room")
    assert second.wait(60).succeeded
    two_devices.until_job(job, holds(2), "it has grown back")
    final = job.wait(120)
    assert final.succeeded, two_devices.log_of(job)
    assert_same_steps(records.records(), undisturbed)
    assert_every_example_once_a_pass(records, passes=EPOCHS)
    assert {step["workers"] for step in records.records()} == {1, 2}
    assert final.failures == 0
