"""The optimiser of the user's loop, which calls it once a batch: it steps and forgets once a step, however many batches
make one, and with the learning rate that suits the batch."""

from __future__ import annotations

import time
import types
from typing import Any, Callable, List, Optional

import torch

from moira.training.gradients import Gradients
from moira.training.noise import NoiseEstimator
from moira.training.sampler import Share
from moira.training.scaling import Rule

#: The noise is measured in every step until so many were made, and then in one of a few, which costs less.
_EVERY_STEP_UNTIL, _THEN_EVERY = 64, 8

Closure = Optional[Callable[[], Any]]


class Stepper:
    """Stands between the user's loop and the optimiser."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        scaler: Optional[Any],
        gradients: Gradients,
        noise: NoiseEstimator,
        rule: Rule,
        designed: int,
        measures: bool,
    ) -> None:
        self._optimizer = optimizer
        self._gradients = gradients
        self._noise = noise
        self._rule = rule
        self._designed = designed
        self._measures = measures
        self._share: Optional[Share] = None
        self._pass = 0
        self._workers = 1
        self._number = 0
        self._progress = 0.0
        self._loss_scale = 1.0
        #: Whether the gradients of the step at hand have lost their scale. Some optimisers take it away themselves.
        self._is_unscaled = True
        self._is_accumulating = False
        #: Whether the step at hand was made.
        self.was_made = False
        #: Whether it was left out, since its gradients were not finite.
        self.was_skipped = False
        #: Squared norms of this worker's parts of the step, for each group; nothing if they were not measured.
        self.squares: List[float] = []
        self.square_of_mean: List[float] = []
        #: Seconds in which the step waited for the gradients of other workers.
        self.exchanged_for = 0.0
        #: When the optimiser was done with the step, by ``time.perf_counter``.
        self.done_at = 0.0
        self._take_over(optimizer)
        self._is_scaling = scaler is not None and bool(scaler.is_enabled())
        if scaler is not None:
            self._take_over_scaler(scaler)

    def begin_step(self, share: Share, workers: int, number: int, progress: float) -> None:
        """A step of these passes comes, after so many and so much progress."""
        self._share, self._workers, self._number, self._progress = share, workers, number, progress
        self.was_made = self.was_skipped = False
        self.squares, self.square_of_mean, self.exchanged_for = [], [], 0.0
        self._is_unscaled = not self._is_scaling
        self._gradients.begin_step(share, workers, self._measures and self.stands_for() > 0)
        if self._measures:
            self._noise.measured_as_adam_sees(self._gradients.is_preconditioned)

    def begin_pass(self, number: int) -> bool:
        """A batch comes. Whether it is the last of the step."""
        self._pass = number
        self._gradients.begin_pass(number)
        return self._is_last()

    def end_step(self) -> None:
        """What the user's loop does with the optimiser until the next batch is its own affair."""
        if not self.was_made and not self.was_skipped:
            raise RuntimeError(
                "a batch was taken and optimizer.step() was not called for it: expected one call for every batch "
                "(with a GradScaler: moira.wrap(…, scaler=scaler))"
            )
        self._share = None

    def examples(self) -> int:
        """Of the batch at hand, on this worker."""
        return len(self._share.passes[self._pass]) if self._share is not None else 0

    def _is_last(self) -> bool:
        return self._share is None or self._pass + 1 == len(self._share.passes)

    def _take_over(self, optimizer: torch.optim.Optimizer) -> None:
        step, zero_grad = optimizer.step, optimizer.zero_grad

        def step_when_complete(_optimizer: torch.optim.Optimizer, closure: Closure = None) -> Any:
            if closure is not None:
                raise TypeError("moira.wrap: an optimizer whose step takes a closure cannot be used")
            if self._share is None:
                return step()
            self._is_accumulating = not self._is_last()
            return None if self._is_accumulating else self._make(step)

        def forget_when_complete(_optimizer: torch.optim.Optimizer, set_to_none: bool = True) -> None:
            if not self._is_accumulating:
                zero_grad(set_to_none)

        # Bound methods, since learning-rate schedulers look inside them.
        vars(optimizer)["step"] = types.MethodType(step_when_complete, optimizer)
        vars(optimizer)["zero_grad"] = types.MethodType(forget_when_complete, optimizer)

    def _take_over_scaler(self, scaler: Any) -> None:
        step, update, unscale = scaler.step, scaler.update, scaler.unscale_

        def step_when_complete(optimizer: torch.optim.Optimizer, *arguments: Any, **named: Any) -> Any:
            if self._share is None or optimizer is not self._optimizer:
                return step(optimizer, *arguments, **named)
            self._is_accumulating = not self._is_last()
            if self._is_accumulating:
                return None
            self._loss_scale = float(scaler.get_scale())
            done = step(optimizer, *arguments, **named)
            # The scaler passes over gradients that are not finite, on all workers alike.
            self.was_skipped = not self.was_made
            self.done_at = time.perf_counter()
            return done

        def update_when_complete(*arguments: Any, **named: Any) -> None:
            if self._is_accumulating:
                return
            update(*arguments, **named)
            # An optimiser that can take the scale away itself also leaves a step out itself, and only this tells.
            leaves_out = getattr(self._optimizer, "_step_supports_amp_scaling", False) and not arguments and not named
            if leaves_out and self.was_made and float(scaler.get_scale()) < self._loss_scale:
                self.was_made, self.was_skipped = False, True

        def unscale_when_complete(optimizer: torch.optim.Optimizer) -> None:
            if optimizer is not self._optimizer or self._is_last():
                unscale(optimizer)
            if optimizer is self._optimizer and self._is_last():
                self._is_unscaled = True

        scaler.step, scaler.update, scaler.unscale_ = step_when_complete, update_when_complete, unscale_when_complete

    def _make(self, step: Callable[[], Any]) -> Any:
        """The step itself, after a look at its gradients."""
        assert self._share is not None
        if self._workers > 1:
            self.exchanged_for = time.perf_counter() - self._gradients.ready_at()
        left_scale = 1.0 if self._is_unscaled else self._loss_scale
        self._gradients.complete(self._loss_scale / left_scale)
        scale = self._share.size / self._designed
        if self._measures:
            self._measure(self._workers * len(self._share.passes), scale, left_scale)
        done = self._at_scale(step, scale)
        self.was_made = True
        self.done_at = time.perf_counter()
        return done

    def stands_for(self) -> int:
        """For how many steps the one at hand is measured: not at all if the answer is none. All workers count alike."""
        if self._number < _EVERY_STEP_UNTIL:
            return 1
        return _THEN_EVERY if self._number % _THEN_EVERY == 0 else 0

    def _measure(self, parts: int, scale: float, left_scale: float) -> None:
        steps = self.stands_for()
        if steps == 0:
            # The one that comes is measured, and will be compared with this one if it has nothing else.
            if parts == 1 and (self._number + 1) % _THEN_EVERY == 0:
                self._gradients.remember(left_scale)
            return
        if parts > 1:
            self.squares, self.square_of_mean = self._gradients.squares(self._loss_scale)
            self._gradients.forget_before()
            return
        compared = self._gradients.compare_with_before(left_scale)
        if compared is not None:
            before, now, product = compared
            self._noise.observe_lone(before, now, product, scale, steps)

    def _at_scale(self, step: Callable[[], Any], scale: float) -> Any:
        """With the learning rate that suits the batch. The rest of a pass is smaller than designed; that is no reason
        to learn slower."""
        groups = self._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group, factor in zip(groups, self._rule.factors(self._noise, max(scale, 1.0), self._progress)):
            group["lr"] = group["lr"] * factor
        try:
            return step()
        finally:
            for group, rate in zip(groups, rates):
                group["lr"] = rate
