"""States are whole or not there."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import IO, Any, Callable, Dict

import pytest

from moira.checkpoint import KEPT, CheckpointError, Checkpoints


def writing(text: bytes) -> Callable[[IO[bytes]], None]:
    def write(file: IO[bytes]) -> None:
        file.write(text)

    return write


def newest(states: Checkpoints) -> Any:
    return states.load_newest(lambda file: file.read())


def test_the_newest_state_comes_back_and_older_ones_are_removed(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path / "made")
    assert newest(states) is None
    for step in range(5):
        states.save(step, writing(b"state %d" % step))
    assert newest(states) == (4, b"state 4")
    assert states.steps() == [3, 4]
    assert len(os.listdir(tmp_path / "made")) == 2 * KEPT


@pytest.mark.parametrize("damage", ["short", "other", "gone", "note gone", "note torn"])
def test_a_state_that_is_not_whole_is_passed_over(tmp_path: Path, damage: str) -> None:
    states = Checkpoints(tmp_path)
    states.save(1, writing(b"one"))
    states.save(2, writing(b"two"))
    data, note = (tmp_path / f"state-{2:012d}{suffix}" for suffix in (".pt", ".json"))
    ways: Dict[str, Callable[[], object]] = {
        "short": lambda: data.write_bytes(b"tw"),
        "other": lambda: data.write_bytes(b"tow"),
        "gone": data.unlink,
        "note gone": note.unlink,
        "note torn": lambda: note.write_text('{"step": 2, "by'),
    }
    ways[damage]()
    assert newest(states) == (1, b"one")


def test_nothing_is_begun_anew_over_states_that_cannot_be_read(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path)
    states.save(1, writing(b"one"))
    (tmp_path / f"state-{1:012d}.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"1 bytes instead of 3.*or empty the directory to begin anew"):
        newest(states)


def test_a_write_that_fails_half_way_leaves_what_was_there(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path)
    states.save(1, writing(b"one"))

    def fail(file: IO[bytes]) -> None:
        file.write(b"tw")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(CheckpointError, match=r"No space left on device\. Make room.*newest whole state is of step 1"):
        states.save(2, fail)
    assert newest(states) == (1, b"one")
    assert len(os.listdir(tmp_path)) == 2, "nothing half is left"


def test_a_save_aside_tells_what_came_of_it(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path)
    assert states.save_in_background(3, writing(b"three"))
    states.wait()
    outcome = states.outcome()
    assert outcome is not None and outcome[0] is not None and outcome[0].step == 3
    assert states.outcome() is None, "told once"


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A file system of one megabyte; only root may make one."""
    if os.geteuid() != 0:
        if os.environ.get("CI"):
            pytest.fail("the tests of full disks need root")
        pytest.skip("only root can make a small file system")
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_really_full_or_read_only_keeps_the_state_before(small_disk: Path) -> None:
    torch = pytest.importorskip("torch")
    states = Checkpoints(small_disk)
    states.save(1, lambda file: torch.save({"w": torch.zeros(10)}, file))
    with pytest.raises(CheckpointError, match="No space left on device"):
        states.save(2, lambda file: torch.save({"w": torch.zeros(1_000_000)}, file))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(CheckpointError, match=r"Read-only file system\. Make room or make it writable"):
        states.save(2, lambda file: torch.save({"w": torch.zeros(10)}, file))
    found = states.load_newest(torch.load)
    assert found is not None and found[0] == 1
