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
