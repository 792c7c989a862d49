"""The steps of one training on one worker: what happens between two batches, and what outlives a stop."""

from __future__ import annotations

import atexit
import gc
import logging
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Union

import torch
from torch import nn
from torch.utils.data import DataLoader

from moira.checkpoint import CheckpointError, Checkpoints
from moira.gang import Resize
from moira.interruption import Interruption, after_restart, departure_of, note_departure
from moira.interval import Every
from moira.job import STOPPED, Job, Tuning
from moira.training.gradients import Gradients, adapts
from moira.training.group import Group, Place
from moira.training.keeper import Keeper
from moira.training.loader import ElasticLoader
from moira.training.model import ElasticModule
from moira.training.noise import NoiseEstimator
from moira.training.sampler import ElasticOrder, Layout, Share
from moira.training.scaling import Rule, rule_for
from moira.training.stepping import Stepper
from moira.training.timing import StepTime, StepTimes, Waits
from moira.training.wishes import Wishes

log = logging.getLogger("moira")

#: How often figures are put together for the service.
_REPORT_SECONDS = 0.5


@dataclass(frozen=True)
class Step:
    """A step that was made, as told to whoever listens (``moira.on_step``)."""

    #: Steps so far, over all runs.
    number: int
    #: What they are worth, in steps of the designed batch.
    progress: float
    #: Mean over all examples of the step, if it was reported.
    loss: Optional[float]
    #: Examples of the step, over all workers.
    batch: int
    workers: int
    passes: int
    #: How long it took. What the loop does now and then after a step, such as evaluating, does not count.
    seconds: float
    #: How much of it this worker spent on exchanging gradients.
    exchange_seconds: float


@dataclass(frozen=True)
class _Agreed:
    """What all workers do after a step."""

    stop: bool
    resize: Optional[Resize]
    tuning: Optional[Tuning]
    loss: Optional[float]
    time: StepTime


class Loop:
    """All that a training needs between ``moira.wrap`` and its end."""

    def __init__(
        self,
        *,
        job: Optional[Job],
        place: Place,
        group: Group,
        seed: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: Optional[Any],
        loader: DataLoader[Any],
        shuffles: bool,
        most_workers: int,
        learning_rate: Union[str, Rule],
        measures: bool,
        checkpoint_every: Every,
        ddp: Dict[str, Any],
        registered: Dict[str, Any],
        listeners: List[Callable[[Step], None]],
    ) -> None:
        assert loader.batch_size is not None, "the loader was checked"
        self._job, self._place, self._group, self._seed = job, place, group, seed
        self._optimizer, self._scaler = optimizer, scaler
        self._designed: int = loader.batch_size
        self._is_adaptive = job is not None and job.is_adaptive
        self._order = ElasticOrder(len(loader.dataset), shuffles, seed, most_workers)
        self._gradients = Gradients(optimizer)
        self.noise = NoiseEstimator(self._gradients.group_count())
        rule = rule_for(learning_rate, adapts(optimizer))
        self._stepper = Stepper(
            optimizer,
            scaler=scaler,
            gradients=self._gradients,
            noise=self.noise,
            rule=rule,
            designed=self._designed,
            measures=measures,
        )
        self.module = ElasticModule(model, ddp)
        self.loader = ElasticLoader(loader, self._order, self)
        self._wishes = Wishes(job) if job is not None else None
        self._keeper: Optional[Keeper] = None
        if job is not None and job.checkpoint_dir is not None:
            self._keeper = Keeper(job, Checkpoints(job.checkpoint_dir), checkpoint_every)
        self._registered = registered
        #: States that were saved under names nobody has registered yet.
        self._restored: Dict[str, Any] = {}
        self._listeners = listeners
        self._interruption = after_restart(job) if job is not None else None
        self._tuning = job.tuning() if job is not None else None
        self._times = StepTimes()
        self._steps, self.progress, self._epoch = 0, 0.0, 0
        self._saved_steps = -1
        self._loss: Any = 0.0
        self._is_loss_known = False
        self._last_loss: Optional[float] = None
        self._to_confirm: Optional[int] = None
        self._report_at = 0.0
        #: What was agreed on in the last step of an epoch.
        self._postponed: Optional[_Agreed] = None
        #: When the workers last agreed on something, and when this one was ready for the step that followed.
        self._agreed_at = self._ended_at = time.perf_counter()
        self._has_begun = False

    def epochs(self, count: int) -> Iterator[int]:
        """See ``Training.epochs``."""
        self.begin()
        while self._epoch < count:
            epoch = self._epoch
            yield epoch
            # A body that took no batches has still had its turn.
            self._epoch = max(self._epoch, epoch + 1)
            self.turn()
        self._confirm_change()
        self._save()
        self._report(force=True)
        self._group.say_goodbye()

    def restore_registered(self, states: Dict[str, Any]) -> None:
        """What was saved under these names before anyone asked for it."""
        for name, holder in states.items():
            if name in self._restored:
                holder.load_state_dict(self._restored.pop(name))

    def take_loss(self, loss: Any) -> None:
        """The mean loss of the batch at hand. It stays on its device until the step is over."""
        value = loss.detach() if isinstance(loss, torch.Tensor) else loss
        self._loss += value * self._stepper.examples()
        self._is_loss_known = True

    def turn(self) -> None:
        """An epoch is over, and the user's loop has done what it does after one. What was agreed on in its last step
        happens now: an epoch that is begun has batches left, whoever goes on with it."""
        agreed, self._postponed = self._postponed, None
        if agreed is not None:
            self._act(agreed)
        # What took place between two epochs was no step.
        self._ended_at = time.perf_counter()

    # What the loader calls.

    def begin(self) -> None:
        """Meets the other workers and takes up the state they have, or the last that was saved. Once."""
        if self._has_begun:
            return
        self._has_begun = True
        atexit.register(self._close)
        job, wishes = self._job, self._wishes
        joins = job is not None and job.joins
        if job is not None and wishes is not None and joins:
            wishes.changed(wishes.agreed(job.gang).members)
            wishes.files.say_ready(job.gang, job.member)
        self._lap("import")
        self._group.meet(self._place)
        self._lap("process_group")
        own = self._keeper.newest() if self._keeper is not None and self._place.rank == 0 and not joins else None
        # Each has looked at a time of its own; what the first one saw counts.
        state, self._tuning = self._group.hand_over((own, self._tuning))
        if state is not None:
            self._restore(state)
        elif self._place.rank != 0:
            torch.manual_seed(self._seed + self._place.rank)
        self.module.connect(self._gradients, self._group.handle)
        self._lap("restore")
        if job is not None and wishes is not None:
            job.report(steps=int(self.progress), resizable=wishes.files.can_resize or None)
        self._agreed_at = self._ended_at = time.perf_counter()

    def layout(self) -> Layout:
        """How steps are cut at present."""
        workers = self._place.workers
        passes = self._tuning.accumulation + 1 if self._tuning is not None else 1
        if self._tuning is None or not self._is_adaptive:
            return Layout(self._designed, workers, passes)
        return Layout(self._tuning.local_batch * passes * workers, workers, passes)

    @property
    def rank(self) -> int:
        """Of this worker, at present."""
        return self._place.rank

    def is_epoch_over(self) -> bool:
        """Whether the epoch that was begun last has come to its end."""
        return self._is_over(self.progress, self._order.passes)

    def _is_over(self, progress: float, passes: int) -> bool:
        """Whether the epoch that was begun last is over with so much progress, and so many passes over the data."""
        if self._is_adaptive:
            return progress * self._designed >= self._order.examples * (self._epoch + 1)
        return passes > self._epoch

    def end_epoch(self) -> None:
        """All batches of an epoch were taken."""
        self._epoch += 1

    def begin_step(self, share: Share) -> None:
        """The passes of a step come."""
        self._stepper.begin_step(share, self._place.workers, self._steps, self.progress)
        self._loss, self._is_loss_known = 0.0, False

    def begin_pass(self, number: int) -> None:
        """A batch is handed out."""
        self.module.exchange_next(self._stepper.begin_pass(number))

    def end_step(self, share: Share) -> None:
        """The user's loop is done with all batches of the step. Now is the time to change anything."""
        self._stepper.end_step()
        agreed = self._agree(share)
        self._agreed_at = time.perf_counter()
        self._order.advance(share.size)
        self._tell(share, agreed)
        if self.is_epoch_over():
            self._postponed = agreed
        else:
            self._act(agreed)
        self._ended_at = time.perf_counter()

    # Between two steps.

    def _act(self, agreed: _Agreed) -> None:
        """Does what all workers do after the same step."""
        if agreed.stop:
            self._leave()
        if self._keeper is not None and self._place.rank == 0:
            self._keeper.look_after(self._steps, self.progress, self._state)
        if agreed.resize is not None:
            self._change_workers(agreed.resize)
        elif agreed.tuning is not None and agreed.tuning != self._tuning:
            self._retune(agreed.tuning)

    def _agree(self, share: Share) -> _Agreed:
        """What all workers know and want, added up: they act on the same numbers after the same step."""
        # A change of workers has its time, which is not to pass while the user's loop evaluates after an epoch.
        tuning, resize = None, None
        if self._wishes is not None and not self._ends_epoch(share):
            tuning, resize = self._wishes.now()
        stop = self._job is not None and self._job.stop_requested
        began, done = time.perf_counter(), self._stepper.done_at
        waits = Waits(self._place.rank, self._place.workers)
        told = waits.told(self._ended_at - self._agreed_at, began - done)
        said = self._group.total(
            [
                float(stop),
                float(resize.gang if resize is not None else 0),
                float(tuning.local_batch if tuning is not None else 0),
                float(tuning.accumulation if tuning is not None else 0),
                float(self._loss),
                float(self._is_loss_known),
                *told,
                *self._stepper.squares,
                # All have the same here but for rounding; that of the first worker counts, so that all count alike.
                *(square if self._place.rank == 0 else 0.0 for square in self._stepper.square_of_mean),
            ]
        )
        self._group.follow_first(self.module.lasting_buffers())
        agreeing = time.perf_counter() - began
        told, squares = said[6 : 6 + len(told)], said[6 + len(told) :]
        self._count(share, squares)
        gang = int(said[1])
        return _Agreed(
            stop=said[0] > 0,
            resize=self._wishes.agreed(gang) if gang > 0 and self._wishes is not None else None,
            tuning=Tuning(int(said[2]), int(said[3])) if said[2] > 0 else None,
            loss=said[4] / share.size if said[5] > 0 else None,
            time=waits.step_time(done - self._ended_at, self._stepper.exchanged_for, agreeing, told),
        )

    def _count(self, share: Share, squares: List[float]) -> None:
        """Puts the step on the account."""
        self._steps += 1
        if not self._stepper.was_made:
            return
        scale = share.size / self._designed
        parts = self._place.workers * len(share.passes)
        if squares:
            groups = len(squares) // 2
            mean_of_squares = [square / parts for square in squares[:groups]]
            self.noise.observe(mean_of_squares, squares[groups:], parts, scale, self._stepper.stands_for())
        self.progress += self._worth(scale)

    def _worth(self, scale: float) -> float:
        """Of a step of so many times the designed batch. Where no noise is known every example counts alike, as it
        does for the service then."""
        return self.noise.gain(scale) if self._is_adaptive and self.noise.is_known else scale

    def _ends_epoch(self, share: Share) -> bool:
        """Whether the epoch is likely to be over with this step, which is not counted yet."""
        is_last = self._order.position + share.size >= self._order.examples
        return self._is_over(self.progress + self._worth(share.size / self._designed), self._order.passes + is_last)

    def _retune(self, tuning: Optional[Tuning]) -> None:
        self._tuning = tuning
        self._times = StepTimes()
        self._gradients.forget_before()

    def _change_workers(self, resize: Resize) -> None:
        """Goes on with other workers: only the process group is made anew, and newcomers are told the state."""
        job, wishes = self._job, self._wishes
        assert job is not None and wishes is not None, "only a job is told to"
        self._report(force=True)
        self._interruption = Interruption("resize")
        rank = resize.rank_of(job.member)
        newcomers = wishes.newcomers(resize)
        self._group.say_goodbye()
        self._group.part()
        if rank is None:
            job.flush()
            sys.exit(STOPPED)
        self._lap("stop")
        job.gang, job.rank, job.world_size = resize.gang, rank, len(resize.members)
        job.local_rank = resize.local_ranks[rank]
        self._place.move(rank, len(resize.members), resize.master_addr, resize.master_port)
        self._group.meet(self._place)
        self._lap("process_group")
        wishes.changed(resize.members)
        self._retune(resize.tuning or self._tuning)
        if newcomers:
            self._group.hand_over((self._state(), self._tuning) if rank == 0 else None)
        self.module.connect(self._gradients, self._group.handle)
        self._lap("restore")
        self._to_confirm = resize.gang
        # All have waited for each other here.
        self._agreed_at = time.perf_counter()

    def _close(self) -> None:
        """Leaves the others for good, and lets go of all that held on to this group and earlier ones. A process that
        ends while they are open may be torn down in the middle of their threads, and then seems to have failed."""
        self.module.connect(self._gradients, None)
        self._group.part()
        gc.collect()

    def _confirm_change(self) -> None:
        """The new workers have made a step together, or there is none left to make."""
        if self._to_confirm is not None and self._wishes is not None and self._place.rank == 0:
            self._wishes.files.say_done(self._to_confirm)
        self._to_confirm = None

    def _lap(self, phase: str) -> None:
        if self._interruption is not None:
            self._interruption.lap(phase)

    # What is told.

    def _tell(self, share: Share, agreed: _Agreed) -> None:
        if share.size == self._whole_step():
            self._times.add(agreed.time)
        seconds, loss = self._times.whole(agreed.time), agreed.loss
        self._last_loss = self._last_loss if loss is None else loss
        self._confirm_change()
        if self._interruption is not None and self._job is not None:
            report = self._interruption.step(seconds, self._times.mean())
            if report is not None:
                self._job.report(restart=report)
                self._interruption = None
        self._report()
        passes, workers = len(share.passes), self._place.workers
        for listener in self._listeners:
            exchange = agreed.time.exchange
            listener(Step(self._steps, self.progress, loss, share.size, workers, passes, seconds, exchange))

    def _whole_step(self) -> int:
        """Examples of a step at present; all there are if they do not fill one. A smaller one is the rest of a pass."""
        return self._order.step_size(self.layout().batch, 0)

    def _report(self, force: bool = False) -> None:
        now = time.monotonic()
        if self._job is None or (now < self._report_at and not force):
            return
        self._report_at = now + _REPORT_SECONDS
        layout = self.layout()
        figures: Dict[str, Any] = {
            "steps": int(self.progress),
            "epoch": self._order.passes + self._order.position / self._order.examples,
            "loss": self._last_loss,
            "checkpoint": self._keeper.figures() if self._keeper is not None else None,
        }
        times = self._times.take(layout.passes)
        if times:
            local_batch = -(-self._whole_step() // (layout.workers * layout.passes))
            figures.update(times, workers=layout.workers, local_batch=local_batch, accumulation=layout.passes - 1)
        if self._is_adaptive and self.noise.is_known:
            figures["noise"] = {"sqr": self.noise.sqr, "var": self.noise.var}
        self._job.report(**figures)

    # States.

    def _save(self) -> None:
        """The present state, unless it is the one that was read or is saved already. If it cannot be saved, the one
        before counts, and the log says what to do about it."""
        if self._keeper is None or self._place.rank != 0 or self._steps == self._saved_steps:
            return
        try:
            self._keeper.save(self._steps, self.progress, self._state)
            self._saved_steps = self._steps
        except CheckpointError as error:
            log.error("%s", error)

    def _leave(self) -> NoReturn:
        """Saves the state and ends this process, as it was told."""
        job = self._job
        assert job is not None, "only a job is told to"
        departure = departure_of(job)
        self._save()
        departure.lap("checkpoint")
        self._report(force=True)
        job.flush()
        self._group.say_goodbye()
        departure.lap("stop")
        note_departure(job, departure)
        sys.exit(STOPPED)

    def _state(self) -> Dict[str, Any]:
        states = {name: holder.state_dict() for name, holder in self._registered.items()}
        return {
            "model": self.module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict() if self._scaler is not None else None,
            "order": self._order.state_dict(),
            "noise": self.noise.state_dict(),
            "steps": self._steps,
            "progress": self.progress,
            "epoch": self._epoch,
            "random": torch.get_rng_state(),
            # What was saved under names that this run has not asked for yet is not lost.
            "registered": {**self._restored, **states},
        }

    def _restore(self, state: Dict[str, Any]) -> None:
        self.module.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._scaler is not None and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        self._order.load_state_dict(state["order"])
        self.noise.load_state_dict(state["noise"])
        self._steps, self.progress, self._epoch = state["steps"], state["progress"], state["epoch"]
        if self._place.rank == 0:
            self._saved_steps = self._steps
            torch.set_rng_state(state["random"])
        else:
            torch.manual_seed(self._seed + self._place.rank + 7919 * self._steps)
        self._restored = state["registered"]
        self.restore_registered(self._registered)
