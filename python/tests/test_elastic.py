"""Real trainings under the real service: they make room for others and take it back, and the result is the same."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest
from conftest import PATIENCE, PYTHON_FOLDER, Service, serving
from problem import undisturbed_loss
from test_training import LOOP, assert_every_example_once_a_pass, assert_same_steps
from workers import Run

from moira.client import JobHandle, JobView

pytest.importorskip("torch")

EPOCHS = 12
#: Steps that are made while the service is away, and their pace: a minute.
AWAY_STEPS, AWAY_PACE = 50, 1.25
TWO_DEVICES = """
[[accelerators]]
kind = "virtual"
count = 2
"""


TWO_KINDS = """
[[accelerators]]
kind = "fast"
count = 1
cores = 1.0
duty = 1.0

[[accelerators]]
kind = "wide"
count = 1
cores = 2.0
duty = 0.6
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> List[Dict[str, Any]]:
    """Every step of a run on one worker that nobody disturbed."""
    found = Run(tmp_path_factory.mktemp("undisturbed"), LOOP).start(1, TEST_EPOCHS=str(EPOCHS))
    assert found.wait() == [0], found.output()
    return found.records()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Two devices, shared by the tests of this file."""
    yield from serving("", TWO_DEVICES)


def submit_loop(service: Service, directory: Path, **options: Any) -> JobHandle:
    """The training of the tests, on one or two workers and with a fixed batch if nothing else is said."""
    environ = {
        "PYTHONPATH": str(PYTHON_FOLDER / "src"),
        "TEST_DIRECTORY": str(directory),
        "TEST_EPOCHS": str(EPOCHS),
        **options.pop("env", {}),
    }
    usual = {"workers": (1, 2), "batch": (64, 64), "checkpoint": {"restart_cost": "1s"}}
    return service.client.submit([sys.executable, str(LOOP)], env=environ, **{**usual, **options})


def holds(workers: int) -> Callable[[JobView], bool]:
    return lambda view: view.state == "running" and view.workers.have == workers


def shrink_and_grow_back(service: Service, directory: Path, undisturbed: List[Dict[str, Any]]) -> Run:
    """A training on two workers, whom another job takes one device from for a while: it is never restarted, and every
    step is that of an undisturbed one."""
    # Two workers are a little faster than one: worth a device that is free, but not one that somebody waits for.
    records = Run(directory, LOOP).pace(0.4, each=0.002)
    job = submit_loop(service, records.directory)
    service.until_job(job, holds(2), "it has both devices")
    records.await_records(len(records.records()) + 5)
    second = service.client.submit(["sleep", "3"], workers=1)
    service.until_job(second, lambda view: view.state == "running", "the second job runs")
    service.until_job(job, holds(1), "the first has made room")
    assert second.wait(PATIENCE).succeeded
    service.until_job(job, holds(2), "it has grown back")
    records.pace(0)
    final = job.wait(PATIENCE)
    assert final.succeeded, f"{final.message}\n{service.log_of(job)}"
    assert_same_steps(records.records(), undisturbed)
    assert_every_example_once_a_pass(records, passes=EPOCHS)
    assert {step["workers"] for step in records.records()} == {1, 2}
    assert final.failures == 0
    assert final.attempts == 1, "it was never restarted"
    return records


def test_a_job_shrinks_for_a_second_one_and_grows_back_when_it_leaves(
    tmp_path: Path, undisturbed: List[Dict[str, Any]]
) -> None:
    """Under a policy that gives a newcomer whatever is free."""
    for service in serving('policy = "composed:grant=grow,grow_gain=1.05"', TWO_DEVICES):
        records = shrink_and_grow_back(service, tmp_path / "run", undisturbed)
        assert records.records()[0]["workers"] == 2, "it starts on both devices"


def test_a_job_that_must_prove_itself_first_shrinks_and_grows_back_too(
    service: Service, tmp_path: Path, undisturbed: List[Dict[str, Any]]
) -> None:
    """Under the policy of the house, which begins with one worker."""
    records = shrink_and_grow_back(service, tmp_path / "run", undisturbed)
    assert records.records()[0]["workers"] == 1


def test_a_job_that_is_stopped_goes_on_with_fewer_workers(tmp_path: Path, undisturbed: List[Dict[str, Any]]) -> None:
    """Where workers cannot change in place: held and released, when there is less to have than before."""
    for service in serving('resize_within = "0s"', TWO_DEVICES):
        records = Run(tmp_path / "run", LOOP).pace(0.1)
        # Processes that load data are the training's own: whoever stops it must not take them away while it saves.
        job = submit_loop(service, records.directory, env={"TEST_LOADERS": "2"})
        service.until_job(job, lambda view: view.state == "running", "it runs")
        records.await_records(10)
        job.hold()
        service.until_job(job, lambda view: view.state == "held", "it has saved and left")
        second = service.client.submit(["sleep", "20"], workers=1)
        service.until_job(second, lambda view: view.state == "running", "the second job runs")
        job.release()
        records.await_records(len(records.records()) + 10)
        records.pace(0)
        final = job.wait(PATIENCE)
        assert final.succeeded, f"{final.message}\n{service.log_of(job)}"
        assert final.attempts > 1
        assert_same_steps(records.records(), undisturbed)
        assert_every_example_once_a_pass(records, passes=EPOCHS)


def test_with_an_adaptive_batch_the_end_is_as_good_as_undisturbed(service: Service, tmp_path: Path) -> None:
    records = Run(tmp_path / "run", LOOP).pace(0.1, each=0.001)
    job = submit_loop(service, records.directory, batch=(64, 512))
    records.await_records(30)
    second = service.client.submit(["sleep", "3"], workers=1)
    assert second.wait(PATIENCE).succeeded
    records.pace(0.02, each=0.001)
    assert job.wait(PATIENCE).succeeded, service.log_of(job)
    assert len({step["batch"] for step in records.records()}) > 2, "the batch was adapted"
    losses = [undisturbed_loss(seed, EPOCHS) for seed in range(10)]
    mean, deviation = statistics.mean(losses), statistics.stdev(losses)
    final = json.loads((records.directory / "final.json").read_text())["loss"]
    assert abs(final - mean) <= 3 * deviation, f"{final} against {mean} ± {deviation}"


def test_more_gradient_noise_leads_to_a_larger_batch(service: Service, tmp_path: Path) -> None:
    """Two jobs alike but for noise that is added to the gradients of one."""
    batches = {}
    jobs = {}
    for name, noise in [("quiet", "0"), ("noisy", "30")]:
        records = Run(tmp_path / name, LOOP).pace(0.05, each=0.0002)
        environ = {"TEST_NOISE": noise, "TEST_EPOCHS": "1000"}
        jobs[name] = (submit_loop(service, records.directory, workers=1, batch=(64, 1024), env=environ), records)
    for name, (_, records) in jobs.items():
        # By then the batch has settled.
        records.await_records(150)
        batches[name] = statistics.median(step["batch"] for step in records.records()[-30:])
    for job, _ in jobs.values():
        job.cancel()
        job.wait(PATIENCE)
    assert batches["noisy"] > 1.5 * batches["quiet"], batches


def test_a_service_that_is_away_and_a_worker_that_is_killed_cost_no_more_than_they_must(
    tmp_path: Path, undisturbed: List[Dict[str, Any]]
) -> None:
    for service in serving("", TWO_DEVICES):
        records = Run(tmp_path / "run", LOOP).pace(0.2)
        environ = {"TEST_CHECKPOINT_SECONDS": "1"}
        job = submit_loop(service, records.directory, workers=2, batch=(64, 64), env=environ, retries=2)
        records.await_records(5)
        service.leave()
        records.pace(AWAY_PACE)
        records.await_records(len(records.records()) + AWAY_STEPS)
        service.start()
        records.pace(0.2)
        view = service.until_job(job, lambda view: view.state == "running" and view.progress is not None, "it runs")
        assert view.attempts == 1, "it did not notice"
        made = len(records.records())
        records.await_records(made + 10)
        os.kill(worker_of(service, job.id, rank=1), signal.SIGKILL)
        service.until_job(job, lambda view: view.attempts == 2 and view.state == "running", "it is tried again")
        records.pace(0)
        final = job.wait(PATIENCE)
        assert final.succeeded, f"{final.message}\n{service.log_of(job)}"
        assert final.failures == 1
        by_number = {step["number"]: step for step in records.records()}
        assert_same_steps([by_number[number] for number in sorted(by_number)], undisturbed)
        assert len(records.records()) - len(by_number) < 15, "what was done since the last save is done again"


def test_a_job_that_is_killed_within_half_a_minute_goes_on_from_a_state_it_saved_by_itself(tmp_path: Path) -> None:
    """With everything as it is if nothing is said."""
    for service in serving("", TWO_DEVICES):
        records = Run(tmp_path / "run", LOOP).pace(0.2)
        environ = {"TEST_CHECKPOINT_SECONDS": "auto", "TEST_EPOCHS": "1000"}
        job = submit_loop(service, records.directory, workers=2, env=environ, retries=1)
        records.await_records(1)
        await_a_state(service, job, at_most=30.0)
        made = len(records.records())
        # Both are found before one is killed: the other may follow it by itself.
        for worker in [worker_of(service, job.id, rank) for rank in (0, 1)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        service.until_job(job, lambda view: view.attempts == 2 and view.state == "running", "it is tried again")
        records.await_records(made + 10)
        goes_on = min(step["number"] for step in records.records()[made:])
        assert goes_on > made / 2, f"it had made {made} steps and begins anew with step {goes_on}"
        job.cancel()
        job.wait(PATIENCE)


@pytest.mark.alone
def test_a_lone_job_that_evaluates_now_and_then_resizes_at_most_twice(tmp_path: Path) -> None:
    """On two devices, of which the second is hardly worth it, with everything as it is if nothing is said.
    An evaluation takes as long as seven steps. A step takes so long that what it computes ends before, also where other
    programs run: that a training has become slower is a reason to resize it."""
    for service in serving("", TWO_DEVICES):
        records = Run(tmp_path / "run", LOOP).pace(0.1, each=0.0004)
        environ = {"TEST_EVALUATION": "25 0.8", "TEST_EPOCHS": "1000"}
        job = submit_loop(service, records.directory, env=environ, checkpoint={})
        records.await_records(400)
        shown = json.loads(service.moira("show", job.id, "-o", "json"))
        assert shown["resizes"] + shown["attempts"] - 1 <= 2, service.moira("explain", job.id)
        job.cancel()
        job.wait(PATIENCE)


def await_a_state(service: Service, job: JobHandle, at_most: float) -> None:
    """Until a state of the job is whole, or so many seconds have passed."""
    until = time.monotonic() + at_most
    notes = f"checkpoints/{job.id}/state-*.json"
    service.until(lambda: any(service.data_dir.glob(notes)) or time.monotonic() > until, "something is saved")


def worker_of(service: Service, job: str, rank: int) -> int:
    """The process of a worker, by its environment. Other services have jobs of the same number."""
    ours = str(service.data_dir).encode()
    for process in Path("/proc").iterdir():
        try:
            environ = (process / "environ").read_bytes().split(b"\0") if process.name.isdigit() else []
        except OSError:
            continue
        is_ours = any(ours in variable for variable in environ)
        if is_ours and f"MOIRA_JOB_ID={job}".encode() in environ and f"RANK={rank}".encode() in environ:
            return int(process.name)
    raise AssertionError(f"job {job} has no worker {rank}")


@pytest.mark.alone
@pytest.mark.parametrize("order", [("parallel", "serial"), ("serial", "parallel")], ids="-".join)
def test_jobs_find_the_kind_that_suits_them_and_stay_there(order: Tuple[str, str], tmp_path: Path) -> None:
    """One job uses all the cores it gets, the other one core. Whoever comes first begins on the fast device."""
    for service in serving("", TWO_KINDS):
        jobs = {}
        for name, first_kind in zip(order, ["fast", "wide"]):
            jobs[name] = service.client.submit(
                [sys.executable, str(LOOP.parent / "kinds_job.py"), name],
                name=name,
                workers=1,
                batch=(16, 16),
                checkpoint={"restart_cost": "2s"},
                env={"PYTHONPATH": str(PYTHON_FOLDER / "src"), "TEST_DIRECTORY": str(tmp_path)},
            )
            service.until_job(jobs[name], on_kind(first_kind), f"{name} begins on the {first_kind} device")
        await_suited(service, [(jobs["parallel"], on_kind("wide")), (jobs["serial"], on_kind("fast"))])


def await_suited(service: Service, wanted: List[Tuple[JobHandle, Callable[[JobView], bool]]]) -> None:
    """Until each of the jobs has been as it should be for 20 seconds."""
    since = time.monotonic()

    def have_stayed() -> bool:
        nonlocal since
        if not all(suits(job.view()) for job, suits in wanted):
            since = time.monotonic()
        return time.monotonic() - since > 20.0

    service.until(have_stayed, "each has the kind that suits it, and has had it for 20 seconds")


def on_kind(kind: str) -> Callable[[JobView], bool]:
    return lambda view: view.state == "running" and view.gpu_kind == kind
