"""Whatever happens to a training, it goes on from the newest whole state or fails with a word on what to do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from test_training import LOOP, assert_every_example_once_a_pass, assert_same_steps, undisturbed
from workers import Run, wait_for

pytest.importorskip("torch")

from moira.training.sampler import ElasticOrder, Layout

__all__ = ["undisturbed"]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    found = Run(tmp_path / "run", LOOP)
    yield found
    found.kill()


def assert_same_in_the_end(run: Run, expected: List[Dict[str, Any]]) -> None:
    by_number = {step["number"]: step for step in run.records()}
    assert_same_steps([by_number[number] for number in sorted(by_number)], expected)


@pytest.mark.parametrize("when", ["step", "boundary"])
def test_a_stop_in_the_middle_of_a_step_or_between_passes_repeats_nothing(
    run: Run, undisturbed: List[Dict[str, Any]], when: str
) -> None:
    assert run.start(2, TEST_TERM=when).wait() == [143, 143], run.output()
    assert run.start(1).wait() == [0], run.output()
    assert_same_steps(run.records(), undisturbed)
    assert_every_example_once_a_pass(run)


def test_a_stop_in_the_last_step_of_an_epoch_lets_the_loop_close_it(
    run: Run, undisturbed: List[Dict[str, Any]]
) -> None:
    """What a loop does after an epoch, such as to step its scheduler, it does once, and with the last batch at hand."""
    order = ElasticOrder(1000, shuffle=True, seed=3, least_rest=4)
    last = list(order.shares(Layout(64, 1, 1), 0))[-1].passes[0][-1]
    assert run.start(1, TEST_TERM="last", TEST_LAST=str(last)).wait() == [143], run.output()
    assert len(run.records()) == 16, "so many steps are an epoch"
    assert run.start(2).wait() == [0, 0], run.output()
    assert_same_steps(run.records(), undisturbed)
    epochs = [line["epoch"] for line in run.records("examples.jsonl")]
    assert epochs == sorted(epochs)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_in_the_middle_of_a_save_leaves_a_whole_state(
    run: Run, undisturbed: List[Dict[str, Any]], number: signal.Signals
) -> None:
    run.pace(0.05).start(1, TEST_CHECKPOINT_SECONDS="0.2", TEST_SLOW_SAVE="0.5")
    states = run.directory / "checkpoints"
    wait_for(lambda: len(list(states.glob("*.json"))) == 1 and len(list(states.glob("*.tmp"))) > 0, "a second save")
    run.signal(number)
    assert run.wait() == [143 if number == signal.SIGTERM else -9], run.output()
    made = len(run.records())
    assert run.pace(0).start(1, TEST_SLOW_SAVE="0").wait() == [0], run.output()
    assert list(states.glob("*.tmp")) == [], "what was not finished is cleared away"
    first_again = run.records()[made]["number"]
    if number == signal.SIGTERM:
        assert first_again == made + 1, "nothing is repeated"
    else:
        assert 1 < first_again <= made + 1
    assert_same_in_the_end(run, undisturbed)


@pytest.fixture
def small_disk(run: Run) -> Iterator[Path]:
    """The checkpoint directory on a file system of its own; only root may make one."""
    if os.geteuid() != 0:
        if os.environ.get("CI"):
            pytest.fail("the tests of full disks need root")
        pytest.skip("only root can make a small file system")
    place = run.directory / "checkpoints"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=True)
    yield place
    run.kill()
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_a_disk_in_trouble_costs_what_was_done_since_and_says_so(
    run: Run, small_disk: Path, undisturbed: List[Dict[str, Any]], trouble: str
) -> None:
    run.pace(0.05).start(1, TEST_CHECKPOINT_SECONDS="0.3")
    wait_for(lambda: any(small_disk.glob("state-*.json")), "a first state")
    if trouble == "full":
        subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/ballast"], check=False, capture_output=True)
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    run.await_records(len(run.records()) + 15)
    run.signal(signal.SIGTERM)
    assert run.wait() == [143], run.output()
    said = "No space left on device" if trouble == "full" else "Read-only file system"
    assert f"{said}. Make room or make it writable; the newest whole state is of step" in run.output()
    assert "training goes on" in run.output()
    made = len(run.records())
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    (small_disk / "ballast").unlink(missing_ok=True)
    assert run.pace(0).start(1).wait() == [0], run.output()
    assert 1 < run.records()[made]["number"] <= made
    assert_same_in_the_end(run, undisturbed)


def test_a_full_disk_does_not_undo_a_training_that_is_done(run: Run, small_disk: Path) -> None:
    subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/ballast"], check=False, capture_output=True)
    assert run.start(1).wait() == [0], run.output()
    assert "No space left on device. Make room or make it writable; there is no whole state yet" in run.output()
    assert (run.directory / "final.json").exists()


def test_a_directory_that_is_gone_is_made_anew(run: Run, undisturbed: List[Dict[str, Any]]) -> None:
    shutil.rmtree(run.directory / "checkpoints")
    run.pace(0.02).start(1, TEST_CHECKPOINT_SECONDS="0.3")
    run.await_records(20)
    run.signal(signal.SIGTERM)
    assert run.wait() == [143], run.output()
    assert run.start(1).wait() == [0], run.output()
    assert_same_steps(run.records(), undisturbed)
