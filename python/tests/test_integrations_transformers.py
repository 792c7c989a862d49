"""Hugging Face's trainer, real and small, stopped in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest
from clock import Clock
from conftest import Service
from interruption import check_reports, interrupted, outside_moira, reports_of

pytest.importorskip("transformers")

SCRIPT = """
import sys, time
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from moira.integrations.transformers import MoiraCallback, output_dir, resume_from

STEPS, PAUSE = int(sys.argv[1]), float(sys.argv[2])

class Line(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Linear(4, 1)

    def forward(self, inputs, labels):
        time.sleep(PAUSE)
        predicted = self.weight(inputs).squeeze(-1)
        return {"loss": ((predicted - labels) ** 2).mean(), "logits": predicted}

class Told(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        print("step", state.global_step, flush=True)

torch.manual_seed(7)
inputs = torch.randn(64, 4)
data = [{"inputs": row, "labels": row.sum()} for row in inputs]
arguments = TrainingArguments(
    output_dir=output_dir("out"), max_steps=STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=2,
    learning_rate=0.05, logging_steps=2, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
)
model = Line()
trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Told(), MoiraCallback()])
trainer.train(resume_from_checkpoint=resume_from(arguments))
if trainer.is_world_process_zero():
    print("result", model.weight.weight.sum().item(), flush=True)
"""


def test_a_stopped_trainer_goes_on_where_it_was(service: Service, tmp_path: Path) -> None:
    undisturbed = outside_moira(SCRIPT, tmp_path, "20", "0")
    assert undisturbed.steps == list(range(1, 21))
    outcome, job, view = interrupted(service, SCRIPT, "20", "0.1", batch=(8, 8))
    assert outcome.steps == undisturbed.steps
    assert float(outcome.result) == pytest.approx(float(undisturbed.result), abs=1e-6)
    assert view.progress is not None
    assert view.progress.steps == 20
    assert view.progress.loss is not None
    check_reports(reports_of(service, job), local_batch=4, accumulation=1, pass_seconds=0.1)
    assert "stopped as told" in [line.text for line in job.explain().history]


def test_workers_stop_after_the_same_step(service: Service) -> None:
    outcome, _, view = interrupted(service, SCRIPT, "20", "0.1", workers=2, batch=(16, 16))
    assert outcome.steps == list(range(1, 21))
    assert view.progress is not None and view.progress.steps == 20


def test_an_evaluation_is_no_step_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from moira.integrations.transformers import MoiraCallback

    clock = Clock(monkeypatch)
    callback = MoiraCallback(clock.job, save_every=None)
    arguments: Any = SimpleNamespace(train_batch_size=4, gradient_accumulation_steps=1, output_dir=str(tmp_path))
    state: Any = SimpleNamespace(global_step=0, max_steps=20, epoch=0.0)
    control: Any = SimpleNamespace(should_save=False)
    callback.on_init_end(arguments, state, control)
    callback.on_train_begin(arguments, state, control)
    for _ in range(20):
        callback.on_step_begin(arguments, state, control)
        clock.now += 1.0
        state.global_step += 1
        callback.on_step_end(arguments, state, control)
        if state.global_step % 5 == 0:
            # Short enough not to be noticed as unusual.
            clock.now += 2.0
            callback.on_evaluate(arguments, state, control)
    callback.on_train_end(arguments, state, control)
    assert set(clock.step_seconds()) == {1.0}


def test_it_saves_by_itself_as_often_as_that_is_cheap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _saved_by_themselves(Clock(monkeypatch), tmp_path / "cheap", save_seconds=0.1) == [10, 15, 25, 35, 45, 55]
    assert _saved_by_themselves(Clock(monkeypatch), tmp_path / "only_model", save_only_model=True) == []
    # The arguments ask for one every four steps, which is often enough.
    assert _saved_by_themselves(Clock(monkeypatch), tmp_path / "often", save_seconds=0.1, save_steps=4) == []


def test_a_save_that_an_evaluation_prevented_is_made_up_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # As with `save_strategy="best"`, where the trainer saves after an evaluation only if it was a good one.
    saved = _saved_by_themselves(Clock(monkeypatch), tmp_path, prevented=[10, 11, 25])
    assert saved == [12, 17, 22, 27, 32, 37, 42, 47, 52, 57]


def test_no_checkpoint_is_added_while_the_disk_has_no_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch)
    size = sum(each.stat().st_size for each in _checkpoint(tmp_path, 0).iterdir())

    def usage(_: Path) -> SimpleNamespace:
        return SimpleNamespace(free=2 * size - 1 if clock.now < 122 else 10 * size)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    saved = _saved_by_themselves(clock, tmp_path)
    assert saved[0] == 30, "it looks after 10 seconds, after 20 and after 30"


def _saved_by_themselves(
    clock: Clock,
    root: Path,
    *,
    save_seconds: float = 0.01,
    save_only_model: bool = False,
    save_steps: int = 0,
    prevented: Sequence[int] = (),
) -> list[int]:
    """At which of sixty steps of a second the callback alone asks for a checkpoint."""
    from moira.integrations.transformers import MoiraCallback

    asked_for = {"save_total_limit": 3, "push_to_hub": True}
    callback = MoiraCallback(clock.job)
    arguments: Any = SimpleNamespace(
        train_batch_size=4,
        gradient_accumulation_steps=1,
        output_dir=str(root),
        save_only_model=save_only_model,
        **asked_for,
    )
    state: Any = SimpleNamespace(global_step=0, max_steps=1000, epoch=0.0, best_model_checkpoint=None)
    callback.on_init_end(arguments, state, SimpleNamespace())
    callback.on_train_begin(arguments, state, SimpleNamespace())
    steps = []
    for _ in range(60):
        callback.on_step_begin(arguments, state, SimpleNamespace())
        assert {name: getattr(arguments, name) for name in asked_for} == asked_for
        clock.now += 1.0
        state.global_step += 1
        is_scheduled = save_steps > 0 and state.global_step % save_steps == 0
        control: Any = SimpleNamespace(should_save=is_scheduled)
        callback.on_step_end(arguments, state, control)
        if control.should_save and state.global_step not in prevented:
            if not is_scheduled:
                steps.append(state.global_step)
                assert (arguments.save_total_limit, arguments.push_to_hub) == (None, False)
            clock.now += save_seconds
            root.mkdir(exist_ok=True)
            _checkpoint(root, state.global_step)
            callback.on_save(arguments, state, control)
    callback.on_train_end(arguments, state, SimpleNamespace())
    return steps


def test_checkpoints_that_were_not_asked_for_leave_those_alone_that_were(tmp_path: Path) -> None:
    from moira.integrations.transformers import resume_from

    arguments: Any = {"save_every": 1e-9, "save_steps": 4, "save_total_limit": 2}
    _train(tmp_path, steps=12, until=10, **arguments)
    # The newest has its name after the next step.
    kept = ["checkpoint-10", "checkpoint-4", "checkpoint-8", "moira-checkpoint-7", "moira-checkpoint-9"]
    assert sorted(each.name for each in tmp_path.iterdir()) == kept
    assert _train(tmp_path, steps=12, **arguments) == [11, 12]
    kept = ["checkpoint-12", "checkpoint-8", "moira-checkpoint-10", "moira-checkpoint-11"]
    assert sorted(each.name for each in tmp_path.iterdir()) == kept
    assert resume_from(tmp_path) == str(tmp_path / "checkpoint-12")
    (tmp_path / "checkpoint-12" / "model.safetensors").unlink()
    assert resume_from(tmp_path) == str(tmp_path / "moira-checkpoint-11")


def test_training_goes_on_from_a_checkpoint_that_was_not_asked_for(tmp_path: Path) -> None:
    from moira.integrations.transformers import resume_from

    begun = _train(tmp_path, steps=20, until=7, save_every=1e-9, save_strategy="no")
    assert begun == list(range(1, 8))
    # It was killed before the newest had its name.
    assert resume_from(tmp_path) == str(tmp_path / "checkpoint-7")
    assert _train(tmp_path, steps=20, until=8, save_every=None, save_strategy="no") == [8]
    assert resume_from(tmp_path) == str(tmp_path / "moira-checkpoint-7")
    assert _train(tmp_path, steps=10, save_every=1e-9, save_strategy="no") == [8, 9, 10]
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == ["moira-checkpoint-8", "moira-checkpoint-9"]


def test_the_best_checkpoint_stays_though_it_was_not_asked_for_then(tmp_path: Path) -> None:
    _train(
        tmp_path, steps=9, save_every=1e-9, save_strategy="best", metric_for_best_model="loss", eval_strategy="steps",
        eval_steps=3, save_total_limit=1, learning_rate=0.0, load_best_model_at_end=True,
    )  # fmt: skip
    # It learns nothing, so the first evaluation is the best; an evaluation without a better one prevents a save.
    kept = ["checkpoint-3", "moira-checkpoint-7", "moira-checkpoint-8"]
    assert sorted(each.name for each in tmp_path.iterdir()) == kept


@pytest.mark.parametrize("when", ["steps", "best"])
def test_the_checkpoint_of_a_stop_stays_beside_the_best(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, when: str
) -> None:
    from transformers import Trainer

    loaded: list[int] = []
    monkeypatch.setattr(Trainer, "_load_best_model", lambda trainer: loaded.append(trainer.state.global_step))
    arguments: Any = {
        "save_every": None, "save_strategy": when, "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3,
        "metric_for_best_model": "loss", "load_best_model_at_end": True, "save_total_limit": 1, "learning_rate": 0.0,
    }  # fmt: skip
    # It learns nothing, so the first evaluation is the best.
    assert _train(tmp_path, steps=12, stop=5, **arguments) == [1, 2, 3, 4, 5]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoint-3", "checkpoint-5"]
    # One stop after the other does not fill the disk.
    assert _train(tmp_path, steps=12, stop=7, **arguments)[:1] == [6]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoint-3", "checkpoint-7"]
    assert _train(tmp_path, steps=9, **arguments) == [8, 9]
    assert loaded == [9], "a stop leaves no time for it"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoint-3"], "training is over"


def test_a_stop_neither_evaluates_nor_saves_once_more(tmp_path: Path) -> None:
    did: list[str] = []
    strategy: Any = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    _train(tmp_path, steps=40, stop=5, did=did, save_every=None, **strategy)
    assert did == ["save 5"]
    _train(tmp_path, steps=40, stop=20, did=did, save_every=None, **strategy)
    assert did == ["save 5", "evaluate 16", "save 16", "save 20"]


def test_one_that_was_not_asked_for_and_not_finished_is_removed(tmp_path: Path) -> None:
    arguments: Any = {"steps": 20, "save_steps": 4}
    _train(tmp_path, save_every=1e-9, killed_in="checkpoint-6", **arguments)
    (tmp_path / "checkpoint-6" / "trainer_state.json").unlink()
    assert _train(tmp_path, until=7, save_every=None, **arguments) == [6, 7]
    kept = ["checkpoint-4", "moira-checkpoint-3", "moira-checkpoint-5"]
    assert sorted(each.name for each in tmp_path.iterdir()) == kept


def test_one_that_was_not_finished_stays_while_training_goes_on_from_it(tmp_path: Path) -> None:
    arguments: Any = {"steps": 20, "save_every": None, "save_steps": 8}
    _train(tmp_path, **{**arguments, "save_every": 1e-9}, killed_in="checkpoint-1")
    # All of it was written, and only the seal is missing.
    assert _train(tmp_path, until=3, **arguments) == [2, 3]
    assert _train(tmp_path, until=9, **arguments) == list(range(2, 10))
    assert (tmp_path / "checkpoint-1").exists()
    assert _train(tmp_path, until=10, **arguments) == [9, 10]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoint-8"]


def test_what_the_trainer_was_to_write_is_not_removed(tmp_path: Path) -> None:
    asked: Any = {"save_steps": 4}
    best: Any = {
        "save_strategy": "best", "eval_strategy": "steps", "eval_steps": 4, "metric_for_best_model": "loss",
    }  # fmt: skip
    for name, arguments in (("asked", asked), ("best", best)):
        root = tmp_path / name
        _train(root, steps=20, save_every=1e-9, killed_in="checkpoint-4", **arguments)
        (root / "checkpoint-4" / "trainer_state.json").unlink()
        assert _train(root, steps=20, until=5, save_every=None, save_strategy="no") == [4, 5]
        assert (root / "checkpoint-4" / "model.safetensors").exists()


def _train(
    root: Path,
    *,
    steps: int,
    save_every: Any,
    until: Optional[int] = None,
    stop: Optional[int] = None,
    killed_in: Optional[str] = None,
    did: Optional[list[str]] = None,
    **arguments: Any,
) -> list[int]:
    """A real trainer in this process, which goes on from what is in the folder. Which steps it made.

    It is killed before the step after ``until``, or when the checkpoint ``killed_in`` is about to be sealed, and told
    to stop in the step ``stop``. ``did`` is what it did besides.
    """
    from transformers import Trainer, TrainingArguments

    from moira.integrations.transformers import MoiraCallback, resume_from
    from moira.job import STOPPED, Job

    made: list[int] = []
    model, data = _line()
    said = TrainingArguments(
        output_dir=str(root), max_steps=steps, per_device_train_batch_size=4, report_to=[], use_cpu=True,
        disable_tqdm=True, **arguments,
    )  # fmt: skip
    ours = MoiraCallback(Job({"MOIRA_JOB_ID": "7"}), save_every=save_every)
    told = _told(root, made, [] if did is None else did, until, stop)
    trainer = Trainer(model, said, train_dataset=data, eval_dataset=data[:8], callbacks=[ours, told])
    ends = contextlib.suppress(KeyboardInterrupt) if stop is None else pytest.raises(SystemExit, match=f"^{STOPPED}$")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    before = dict(vars(said))
    try:
        with _killed_at_the_seal(killed_in), ends:
            trainer.train(resume_from_checkpoint=resume_from(said))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert stop is None or (made[-1], vars(said)) == (stop, before)
    return made


def _line() -> tuple[Any, list[dict[str, Any]]]:
    """A model, and what it learns."""
    import torch

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.weight = torch.nn.Linear(4, 1)

        def forward(self, inputs: Any, labels: Any) -> dict[str, Any]:
            predicted = self.weight(inputs).squeeze(-1)
            return {"loss": ((predicted - labels) ** 2).mean(), "logits": predicted}

    return Line(), [{"inputs": torch.ones(4) * number, "labels": torch.tensor(float(number))} for number in range(64)]


def _told(root: Path, made: list[int], did: list[str], until: Optional[int], stop: Optional[int]) -> Any:
    """A callback that comes after ours."""
    from transformers import TrainerCallback

    class Told(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            made.append(state.global_step)

        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == until:
                raise KeyboardInterrupt
            if state.global_step + 1 == stop:
                os.kill(os.getpid(), signal.SIGTERM)

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            did.append(f"evaluate {state.global_step}")

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            did.append(f"save {state.global_step}")
            # It finds what was saved where the trainer says.
            assert (root / f"checkpoint-{state.global_step}" / "trainer_state.json").exists()

    return Told()


@contextlib.contextmanager
def _killed_at_the_seal(name: Optional[str]) -> Iterator[None]:
    """A process that seals all checkpoints but one, at which it is killed."""
    from moira.integrations import _folders as folders

    really_seal = folders.seal

    def seal(folder: Path, figures: Any) -> None:
        if folder.name == name:
            raise KeyboardInterrupt
        really_seal(folder, figures)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "seal", seal)
        yield


def test_a_checkpoint_that_was_not_finished_is_passed_over(tmp_path: Path) -> None:
    from moira.integrations import _folders as folders
    from moira.integrations.transformers import resume_from

    assert resume_from(tmp_path / "nothing") is None
    whole, foreign = _checkpoint(tmp_path, 5), _checkpoint(tmp_path, 7)
    folders.seal(whole, {"steps": 5})
    assert resume_from(tmp_path) == str(foreign)
    (foreign / "trainer_state.json").write_text('{"global_st')
    assert resume_from(tmp_path) == str(whole)
    (foreign / "trainer_state.json").unlink()
    (tmp_path / "checkpoint-new").mkdir()
    assert resume_from(str(tmp_path)) == str(whole)


def test_a_sealed_checkpoint_that_lost_a_part_is_passed_over(tmp_path: Path) -> None:
    from moira.integrations import _folders as folders
    from moira.integrations.transformers import resume_from

    older, newer = _checkpoint(tmp_path, 9), _checkpoint(tmp_path, 10)
    folders.seal(older, {"steps": 9})
    folders.seal(newer, {"steps": 10})
    assert resume_from(tmp_path) == str(newer)
    (newer / "model.safetensors").write_bytes(b"12")
    assert resume_from(tmp_path) == str(older)
    (older / "model.safetensors").unlink()
    assert resume_from(tmp_path) is None


def test_pruning_keeps_the_newest_whole_ones(tmp_path: Path) -> None:
    from moira.integrations import _folders as folders

    for steps in (1, 2, 10, 20):
        folders.seal(_checkpoint(tmp_path, steps), {"steps": steps})
    _checkpoint(tmp_path, 30)
    folders.prune(tmp_path, "checkpoint-", 2)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-20"]


def _checkpoint(root: Path, steps: int) -> Path:
    folder = root / f"checkpoint-{steps}"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"1234")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": steps}))
    return folder
