"""What is saved while training goes on is a state of one moment, and copied only to be saved."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import pytest

pytest.importorskip("torch")

import torch

from moira.checkpoint import Checkpoints
from moira.job import Job
from moira.training.keeper import Keeper, _copied


class Pair(NamedTuple):
    """What is more than a tuple."""

    left: List[int]
    right: List[int]


def test_a_copy_shares_nothing_that_may_change() -> None:
    state: Dict[str, Any] = {
        "tensor": torch.zeros(1),
        "ordered": OrderedDict(weights=torch.zeros(1)),
        "pair": Pair([1], [2]),
        "others": {"bytes": bytearray(b"a"), "set": {1}},
    }
    copied = _copied(state)
    state["tensor"] += 1
    state["ordered"]["weights"] += 1
    state["pair"].left.append(9)
    state["others"]["bytes"] += b"b"
    state["others"]["set"].add(2)
    assert copied["tensor"].item() == copied["ordered"]["weights"].item() == 0.0
    assert copied["pair"] == Pair([1], [2])
    assert copied["others"] == {"bytes": bytearray(b"a"), "set": {1}}


def test_nothing_is_copied_while_a_state_is_being_written(tmp_path: Path) -> None:
    gate, copies = threading.Event(), []

    class Slow:
        def __deepcopy__(self, _: object) -> Slow:
            return self

        def __reduce__(self) -> Any:
            gate.wait(60.0)
            return str, ()

    def state() -> Dict[str, Any]:
        copies.append(1)
        return {"slow": Slow()}

    keeper = Keeper(Job({"MOIRA_JOB_ID": "1"}), Checkpoints(tmp_path), every=1e-9)
    for step in range(20):
        keeper.look_after(step, float(step), state)
    assert len(copies) == 1
    gate.set()
    keeper.checkpoints.wait()
    keeper.look_after(20, 20.0, state)
    keeper.checkpoints.wait()
    assert keeper.checkpoints.steps() == [0, 20]


def test_a_state_that_cannot_be_copied_is_told_of_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = Keeper(Job({"MOIRA_JOB_ID": "1"}), Checkpoints(tmp_path), every=1e-9)
    held: List[Any] = [threading.Lock()]
    keeper.look_after(1, 1.0, lambda: {"held": held})
    assert "cannot copy the state to save it" in caplog.text
    assert keeper.checkpoints.steps() == []


def test_a_state_is_saved_by_itself_ten_seconds_after_the_start_and_then_as_often_as_that_is_cheap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("moira.training.keeper.time.monotonic", lambda: now)
    keeper = Keeper(Job({"MOIRA_JOB_ID": "1"}), Checkpoints(tmp_path), every="auto")
    saved = []
    for step in range(30):
        now += 1.0
        keeper.look_after(step, float(step), lambda: {"weights": torch.zeros(1)})
        if keeper.checkpoints.is_busy() or keeper.checkpoints._outcome is not None:
            keeper.checkpoints.wait()
            saved.append(step + 1)
    assert saved == [10, 15, 20, 25, 30]


def test_a_state_that_takes_long_to_copy_is_saved_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("moira.training.keeper.time.monotonic", lambda: now)

    def state() -> Dict[str, Any]:
        nonlocal now
        now += 1.0
        return {}

    keeper = Keeper(Job({"MOIRA_JOB_ID": "1"}), Checkpoints(tmp_path), every="auto")
    saved = []
    for step in range(1000):
        now += 1.0
        before = now
        keeper.look_after(step, float(step), state)
        keeper.checkpoints.wait()
        saved += [now - 1001.0] if now > before else []
    gaps = [later - earlier for earlier, later in zip(saved, saved[1:])]
    assert gaps[0] == pytest.approx(10.0, abs=1.5), "the first cost may be an outlier"
    assert all(gap == pytest.approx(100.0, abs=1.5) for gap in gaps[1:]), gaps
