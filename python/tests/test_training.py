"""Real trainings with real workers, started by hand: the same steps whoever takes them, through stops and resizes."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from workers import PATIENCE_SECONDS, Run, wait_for

import moira

pytest.importorskip("torch")

LOOP = Path(__file__).parent / "loop.py"
#: A pace at which nothing moves.
HOLD = 1e9


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    found = Run(tmp_path / "run", LOOP)
    yield found
    found.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> List[Dict[str, Any]]:
    """Every step of a run on one worker that nobody disturbed."""
    found = Run(tmp_path_factory.mktemp("undisturbed"), LOOP).start(1)
    assert found.wait() == [0], found.output()
    return found.records()


def test_every_name_of_the_package_can_be_had() -> None:
    assert [name for name in moira.__all__ if getattr(moira, name, None) is None] == []


def assert_same_steps(found: List[Dict[str, Any]], expected: List[Dict[str, Any]]) -> None:
    assert [step["number"] for step in found] == [step["number"] for step in expected]
    assert [step["batch"] for step in found] == [step["batch"] for step in expected]
    for step, other in zip(found, expected):
        assert step["loss"] == pytest.approx(other["loss"], abs=1e-4), step["number"]
        assert step["rate"] == other["rate"], step["number"]


def assert_every_example_once_a_pass(run: Run, passes: int = 3, examples: int = 1000) -> None:
    for epoch in range(passes):
        taken = Counter(
            number for line in run.records("examples.jsonl") if line["epoch"] == epoch for number in line["numbers"]
        )
        assert set(taken) == set(range(examples)), "none is lost"
        assert set(taken.values()) == {1}, "none is repeated"


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_makes_the_same_steps(run: Run, undisturbed: List[Dict[str, Any]], workers: int) -> None:
    assert run.start(workers).wait() == [0] * workers, run.output()
    assert_same_steps(run.records(), undisturbed)
    assert_every_example_once_a_pass(run)


def test_running_means_are_those_of_the_first_worker(tmp_path: Path) -> None:
    run = Run(tmp_path, LOOP.parent / "buffers.py").start(2)
    assert run.wait() == [0, 0], run.output()
    first, second = (run.records(f"buffers-{rank}.jsonl") for rank in range(2))
    assert [step["means"] for step in first] == [step["means"] for step in second]
    assert first[0]["means"] != first[1]["means"], "they are learnt"
    assert [step["seen"] for step in second] == list(range(1, 9))
    assert {step["own"] for step in second} == {1.0}, "what is not saved is each worker's own"


def test_a_stopped_training_goes_on_with_other_workers_where_it_was(
    run: Run, undisturbed: List[Dict[str, Any]]
) -> None:
    for workers in [2, 1, 3]:
        made = len(run.records())
        run.pace(0.05).start(workers)
        run.await_records(made + 5)
        run.signal(signal.SIGTERM)
        assert run.wait() == [143] * workers, run.output()
    assert run.pace(0).start(2).wait() == [0, 0], run.output()
    assert_same_steps(run.records(), undisturbed)
    assert_every_example_once_a_pass(run)
    phases = [report["restart"]["phases"] for report in run.reports() if "restart" in report]
    assert len(phases) == 3
    for told in phases:
        assert set(told) == {
            "notice",
            "checkpoint",
            "stop",
            "start",
            "import",
            "process_group",
            "restore",
            "first_step",
        }


def test_batches_that_were_loaded_ahead_are_not_lost_by_a_stop(run: Run, undisturbed: List[Dict[str, Any]]) -> None:
    run.pace(0.05).start(1, TEST_LOADERS="2")
    run.await_records(6)
    run.signal(signal.SIGTERM)
    assert run.wait() == [143], run.output()
    assert run.pace(0).start(2, TEST_LOADERS="1").wait() == [0, 0], run.output()
    assert_same_steps(run.records(), undisturbed)
    assert_every_example_once_a_pass(run)


def test_workers_come_and_go_while_the_others_stay(run: Run, undisturbed: List[Dict[str, Any]]) -> None:
    run.pace(0.5).start(2)
    run.await_records(5)
    run.resize(stay=[0], join=0)
    run.await_done()
    assert run.members[1].wait(PATIENCE_SECONDS) == 143
    run.await_records(len(run.records()) + 4)
    # Newcomers take their time to import, which must not be the end of the training.
    run.pace(HOLD).resize(stay=[0], join=2)
    run.await_ready([2, 3])
    run.pace(0.5).await_done()
    run.await_records(len(run.records()) + 2)
    # The first worker may be the one that goes.
    run.resize(stay=[2, 3], join=0)
    run.await_done()
    assert run.members[0].wait(PATIENCE_SECONDS) == 143
    # There may be as many as before and still others, so that one takes the place of another.
    run.pace(HOLD).resize(stay=[3], join=1)
    run.await_ready([4])
    run.pace(0.05).await_done()
    assert run.wait() == [143, 143, 143, 0, 0], run.output()
    assert_same_steps(run.records(), undisturbed)
    assert_every_example_once_a_pass(run)
    assert {step["workers"] for step in run.records()} == {1, 2, 3}
    kinds = [report["restart"]["kind"] for report in run.reports() if "restart" in report]
    assert kinds == ["resize"] * 4


def test_nobody_joins_before_the_loop_has_closed_its_epoch(run: Run, undisturbed: List[Dict[str, Any]]) -> None:
    """A newcomer would find no batch left of it."""
    run.pace(0.5).start(1)
    run.await_records(15)
    run.pace(HOLD).resize(stay=[0], join=1)
    run.await_ready([1])
    assert run.pace(0.05).wait() == [0, 0], run.output()
    assert_same_steps(run.records(), undisturbed)
    assert_every_example_once_a_pass(run)
    assert [step["workers"] for step in run.records()[14:19]] == [1, 1, 1, 2, 2], "sixteen steps are an epoch"


def test_a_resize_that_is_withdrawn_disturbs_nobody(run: Run, undisturbed: List[Dict[str, Any]]) -> None:
    run.pace(0.05).start(1)
    run.await_records(3)
    (run.directory / "gang" / "verdict.2").write_text("withdrawn")
    run.resize(stay=[0], join=1)
    codes = [run.members[0].wait(PATIENCE_SECONDS)]
    run.kill()
    assert codes == [0], run.output()
    assert_same_steps(run.records(), undisturbed)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_passes_add_up_to_the_step_of_one(tmp_path: Path, optimizer: str) -> None:
    found = []
    for local, accumulation in [(128, 0), (64, 1), (32, 3)]:
        environ = {
            "MOIRA_LOCAL_BATCH": str(local),
            "MOIRA_ACCUMULATION": str(accumulation),
            "TEST_OPTIMIZER": optimizer,
        }
        run = Run(tmp_path / str(local), LOOP).start(1, **environ, TEST_EPOCHS="1")
        assert run.wait() == [0], run.output()
        assert run.records()[0]["passes"] == accumulation + 1
        found.append([step["loss"] for step in run.records()])
    assert found[1] == pytest.approx(found[0], abs=1e-4)
    assert found[2] == pytest.approx(found[0], abs=1e-4)


def test_workers_whose_gradients_are_not_exchanged_are_told_so(run: Run) -> None:
    assert run.start(2, TEST_BYPASS="1").wait() == [1, 1]
    assert "call the model itself, model(inputs) and not one of its methods" in run.output()


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_leaves_out_brings_no_progress(run: Run, fused: bool) -> None:
    environ = {"TEST_PRECISION": "scaled", "TEST_INFINITE": "5", "TEST_EPOCHS": "1", "TEST_OPTIMIZER": "Adam"}
    assert run.start(1, **environ, **({"TEST_FUSED": "1"} if fused else {})).wait() == [0], run.output()
    assert [step["progress"] for step in run.records()[3:8]] == [4.0, 5.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_lone_worker_measures_gradients_without_their_scale(tmp_path: Path, optimizer: str) -> None:
    """Also where the optimiser itself takes the scale away."""
    noise: List[Dict[str, float]] = []
    ways: List[Dict[str, str]] = [{}, {"TEST_PRECISION": "scaled"}, {"TEST_PRECISION": "scaled", "TEST_FUSED": "1"}]
    for way in ways:
        environ = {"MOIRA_BATCH": "64", "MOIRA_BATCH_MAX": "1024", "MOIRA_LOCAL_BATCH": "64", **way}
        environ["TEST_OPTIMIZER"] = optimizer
        run = Run(tmp_path / str(len(noise)), LOOP).start(1, **environ)
        assert run.wait() == [0], run.output()
        noise.append([report["noise"] for report in run.reports() if "noise" in report][-1])
    for scaled in noise[1:]:
        assert scaled["sqr"] == pytest.approx(noise[0]["sqr"], rel=1e-2)
        assert scaled["var"] == pytest.approx(noise[0]["var"], rel=1e-2)


@pytest.mark.parametrize("workers", [1, 2])
def test_neither_loss_scaling_nor_clipping_touches_the_noise(tmp_path: Path, workers: int) -> None:
    noise, losses = [], []
    for precision in ["plain", "scaled"]:
        environ = {"MOIRA_BATCH": "64", "MOIRA_BATCH_MAX": "1024", "MOIRA_LOCAL_BATCH": str(64 // workers)}
        # Gradients are clipped now and then, which must not be taken for a lack of noise.
        environ.update(MOIRA_ACCUMULATION="1", TEST_PRECISION=precision, TEST_CLIP="1.0")
        run = Run(tmp_path / precision, LOOP).start(workers, **environ)
        assert run.wait() == [0] * workers, run.output()
        noise.append([report["noise"] for report in run.reports() if "noise" in report][-1])
        losses.append([step["loss"] for step in run.records()])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert noise[1]["sqr"] == pytest.approx(noise[0]["sqr"], rel=1e-3)
    assert noise[1]["var"] == pytest.approx(noise[0]["var"], rel=1e-3)
    assert noise[0]["sqr"] > 1.0, "the squared norm of what was clipped to 1"


def test_the_batch_follows_the_scheduler_without_a_restart(run: Run) -> None:
    run.pace(0.05).start(1, MOIRA_BATCH="64", MOIRA_BATCH_MAX="512", MOIRA_LOCAL_BATCH="64")
    run.await_records(3)
    (run.directory / "tuning.json").write_text('{"local_batch": 100, "accumulation": 1}')
    wait_for(lambda: run.records()[-1]["batch"] == 200, "the batch is the one that was asked for")
    assert run.wait() == [0], run.output()
    progress = run.records()[-1]["progress"]
    assert 3 * 1000 / 64 <= progress < 3 * 1000 / 64 + 200 / 64, "epochs are counted in progress"
    assert sum(step["batch"] for step in run.records()) > 3000, "larger batches need more examples for it"


def test_a_worker_that_is_killed_costs_what_was_done_since_the_last_save(
    run: Run, undisturbed: List[Dict[str, Any]]
) -> None:
    run.pace(0.1).start(2, TEST_CHECKPOINT_SECONDS="0.5")
    run.await_records(14)
    run.signal(signal.SIGKILL, [0])
    run.kill()
    made = len(run.records())
    assert run.start(1).wait() == [0], run.output()
    again = run.records()[made:]
    assert 1 < again[0]["number"] <= made + 1
    by_number = {step["number"]: step for step in run.records()}
    assert_same_steps([by_number[number] for number in sorted(by_number)], undisturbed)


def test_a_torn_state_is_passed_over_for_the_one_before(run: Run, undisturbed: List[Dict[str, Any]]) -> None:
    run.pace(0.05).start(1, TEST_CHECKPOINT_SECONDS="0.3")
    run.await_records(20)
    run.signal(signal.SIGTERM)
    assert run.wait() == [143], run.output()
    states = sorted((run.directory / "checkpoints").glob("state-*.pt"))
    assert len(states) == 2
    states[1].write_bytes(states[1].read_bytes()[:-100])
    made = len(run.records())
    assert run.start(1).wait() == [0], run.output()
    assert run.records()[made]["number"] == int(states[0].stem.split("-")[1]) + 1
    assert "passing over the state" in run.output()
    by_number = {step["number"]: step for step in run.records()}
    assert_same_steps([by_number[number] for number in sorted(by_number)], undisturbed)


def test_states_that_are_all_torn_are_an_error_that_says_what_to_do(run: Run) -> None:
    run.pace(0.05).start(1)
    run.await_records(3)
    run.signal(signal.SIGTERM)
    assert run.wait() == [143], run.output()
    for path in (run.directory / "checkpoints").glob("state-*.pt"):
        path.write_bytes(b"torn")
    assert run.start(1).wait() == [1]
    assert "Restore one from a backup, or empty the directory to begin anew" in run.output()


def test_a_batch_that_its_workers_cannot_share_is_refused(run: Run) -> None:
    assert run.start(1, TEST_BATCH="3").wait() == [1]
    assert "batch_size=3, which 4 workers cannot share" in run.output()


def test_outside_moira_any_loader_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from moira.training.session import Training

    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = torch.utils.data.WeightedRandomSampler([0.5, 0.5], 2)
    loader: Any = torch.utils.data.DataLoader(torch.zeros(2, 1), batch_size=1, sampler=sampler)
    assert Training(None, None, 0).wrap(model, optimizer, loader) == (model, optimizer, loader)


def test_where_no_noise_is_measured_examples_count(run: Run) -> None:
    environ = {"MOIRA_BATCH": "64", "MOIRA_BATCH_MAX": "512", "MOIRA_LOCAL_BATCH": "256", "TEST_MEASURE": "no"}
    assert run.start(1, **environ, TEST_EPOCHS="1").wait() == [0], run.output()
    assert [step["progress"] for step in run.records()[:2]] == [4.0, 8.0]


def test_a_batch_larger_than_all_examples_is_timed_all_the_same(run: Run) -> None:
    environ = {"MOIRA_BATCH": "64", "MOIRA_BATCH_MAX": "4096", "MOIRA_LOCAL_BATCH": "2048"}
    assert run.pace(0.2).start(1, **environ).wait() == [0], run.output()
    timed = [report for report in run.reports() if "step_seconds" in report]
    assert timed and {report["local_batch"] for report in timed} == {1000}


def test_a_batch_that_is_not_the_submitted_one_is_refused(run: Run) -> None:
    assert run.start(1, MOIRA_BATCH="128", MOIRA_BATCH_MAX="512").wait() == [1]
    assert "submitted with a designed batch of 128, and the DataLoader has batch_size=64" in run.output()
