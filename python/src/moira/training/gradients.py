"""What happens to gradients between a backward pass and the optimiser's step: they are weighed, measured and exchanged.

The parts of a step are its passes on all workers. Each part counts by its examples, so the gradient of a step is that
of its examples whoever took them, also where they cannot be cut evenly. The squared norm of each part is what the noise
estimate lives on.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any, Dict, Iterable, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from moira.training.sampler import Share

log = logging.getLogger("moira")

#: Second moments of fewer steps than this say little.
_TRUSTED_AFTER = 5


class Gradients:
    """The gradients of one model, on one worker."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._groups: List[List[nn.Parameter]] = [
            [parameter for parameter in group["params"] if parameter.requires_grad] for group in optimizer.param_groups
        ]
        self._group_of: Dict[nn.Parameter, int] = {
            parameter: index for index, group in enumerate(self._groups) for parameter in group
        }
        self._measures = False
        self._workers = 1
        self._weights: List[float] = [1.0]
        self._pass = 0
        self._hooks: List[Any] = []
        #: Of steps with several passes: what came so far, weighed. Until the last pass the loop sees zeros instead.
        self._kept: Dict[nn.Parameter, Tensor] = {}
        self._zeros: Dict[nn.Parameter, Tensor] = {}
        self._hides = False
        self._is_in_backward = False
        #: Whether the pass at hand was sent back before.
        self._is_sent_back = False
        self._has_warned = False
        self._squares: List[List[Tensor]] = []
        self._mean_squares: List[List[Tensor]] = []
        self._before: Optional[List[List[Tensor]]] = None
        self._ready_at = 0.0
        self._is_exchanged = False
        self._adapts = adapts(optimizer)
        #: Whether gradients are measured as Adam sees them, since it has second moments that can be trusted.
        self.is_preconditioned = False

    def group_count(self) -> int:
        """Groups of parameters of the optimiser."""
        return len(self._groups)

    def begin_step(self, share: Share, workers: int, measures: bool) -> None:
        """A step of these passes comes, and may be measured."""
        self._measures = measures
        self._workers = workers
        self._weights = [len(examples) * workers / share.size for examples in share.passes]
        self._squares = [[] for _ in self._groups]
        self._mean_squares = [[] for _ in self._groups]
        self._kept, self._hides = {}, False
        self._is_exchanged = False
        self._look_at_moments()
        self._listen(len(share.passes) > 1)

    def begin_pass(self, number: int) -> None:
        """The forward and backward pass of this number comes."""
        self._pass = number
        self._is_in_backward = self._is_sent_back = False

    def exchange(self, group, bucket):  # type: ignore[no-untyped-def]
        """The hook of DistributedDataParallel: called with gradients as soon as the backward pass has them, when they
        are to be averaged over all workers. It has no annotations, since they would be compared with the classes
        themselves, and ours are text."""
        self._is_exchanged = True
        buffer: Tensor = bucket.buffer()
        if self._measures:
            self._measure(bucket.parameters(), bucket.gradients(), self._squares)
        if self._weights[self._pass] != 1.0:
            buffer.mul_(self._weights[self._pass])
        if self._kept:
            self._add_kept(bucket.parameters(), bucket.gradients())
        buffer.div_(self._workers)
        self._ready_at = time.perf_counter()
        work = dist.all_reduce(buffer, group=group, async_op=True)
        assert work is not None

        def take(future: Any) -> Tensor:
            mean: Tensor = future.value()[0]
            if self._measures:
                self._measure(bucket.parameters(), bucket.gradients(), self._mean_squares)
            return mean

        return work.get_future().then(take)

    def ready_at(self) -> float:
        """When the last gradients of this worker were ready to be exchanged, by ``time.perf_counter``."""
        return self._ready_at

    def complete(self, loss_scale: float) -> None:
        """Brings back what was kept if the last pass went without backward, to gradients that have lost this scale."""
        if self._kept and self._workers > 1:
            raise RuntimeError(
                "optimizer.step() was called without loss.backward() for the last batch of a step, with which several "
                "workers exchange their gradients: call it for every batch, or submit the job with one worker"
            )
        if self._workers > 1 and not self._is_exchanged:
            raise RuntimeError(
                "optimizer.step() was called and the workers have not exchanged their gradients: call the model "
                "itself, model(inputs) and not one of its methods, in training mode (model.train()), and "
                "loss.backward() for every batch"
            )
        for parameter, kept in self._kept.items():
            parameter.grad = kept / loss_scale
        self._kept = {}

    def squares(self, loss_scale: float) -> Tuple[List[float], List[float]]:
        """For each group, the squared norms of this worker's parts of the step, added up, and the squared norm of the
        gradient of the whole step, as it was before the user's loop did anything to it. Of steps with several parts; no
        numbers if they could not be measured."""
        if not self._measures:
            unknown = [math.nan for _ in self._groups]
            return unknown, unknown
        return _sums(self._squares, loss_scale), _sums(self._mean_squares, loss_scale)

    def compare_with_before(self, loss_scale: float) -> Optional[List[List[float]]]:
        """For each group the squared norm of the gradient of the step before, of this one, and their product; nothing
        if there is nothing to compare with. Of a worker whose steps have one part, and gradients of this scale."""
        before = self._before
        self.remember(loss_scale)
        assert self._before is not None
        # One that was never used before has joined the others.
        if before is None or [len(group) for group in before] != [len(group) for group in self._before]:
            return None
        pairs = list(zip(before, self._before))
        return [
            [_square(old) for old, _ in pairs],
            [_square(new) for _, new in pairs],
            [_product(*pair) for pair in pairs],
        ]

    def remember(self, loss_scale: float) -> None:
        """The next step will be compared with this one. Its gradients are overwritten then, so these are copies."""
        conditioned = [self._conditioned(group, _gradients_of(group)) for group in self._groups]
        self._before = [list(torch._foreach_div(group, loss_scale)) if group else [] for group in conditioned]

    def forget_before(self) -> None:
        """The next step is not the successor of the last one."""
        self._before = None

    def _look_at_moments(self) -> None:
        """Gradients that were divided by their second moments are not compared with others."""
        if self._adapts and not self.is_preconditioned:
            self.is_preconditioned = max(_steps(self._optimizer.state.values()), default=0.0) >= _TRUSTED_AFTER
            if self.is_preconditioned:
                self.forget_before()

    def _listen(self, several_passes: bool) -> None:
        """With several passes the gradients of each are weighed, measured and kept until the last one completes them.
        Before that there is nothing to be seen of them, so that a loop that clips gradients clips those of the whole
        step."""
        if several_passes and not self._hooks:
            self._hooks = [parameter.register_hook(self._on_gradient) for parameter in self._group_of]
        elif not several_passes and self._hooks:
            for hook in self._hooks:
                hook.remove()
            self._hooks, self._zeros = [], {}

    def _on_gradient(self, _: Tensor) -> None:
        """A backward pass has a gradient, which is the first if none was heard of: it is not added to anything yet."""
        # What is exchanged is completed then, and stays where those who exchange it expect it.
        if self._is_in_backward or (self._is_last_pass() and self._workers > 1):
            return
        self._is_in_backward = True
        self._clear()
        # All gradients at once are quicker than one by one as they come.
        Variable._execution_engine.queue_callback(self._after_backward)

    def _is_last_pass(self) -> bool:
        return self._pass + 1 == len(self._weights)

    def _clear(self) -> None:
        """Makes room for new gradients. What is there is either zeros of ours, or belongs to the step as well."""
        for parameter in self._group_of:
            there, parameter.grad = parameter.grad, None
            if there is not None and not self._hides:
                self._kept[parameter] = there
        self._hides = False

    def _after_backward(self) -> None:
        self._is_in_backward = False
        if self._is_sent_back and self._measures:
            self._give_up_measuring()
        parameters = [parameter for parameter in self._group_of if parameter.grad is not None]
        gradients = _gradients_of(parameters)
        # There are none where gradients were asked for without being added up, as by `torch.autograd.grad`.
        if gradients:
            if self._measures:
                self._measure(parameters, gradients, self._squares)
            if self._workers > 1:
                # They may lie in the memory through which the last pass is exchanged.
                gradients = [one.clone() for one in gradients]
            torch._foreach_mul_(gradients, self._weights[self._pass])
            self._add_kept(parameters, gradients)
            self._is_sent_back = True
        self._kept.update(zip(parameters, gradients))
        if not self._is_last_pass():
            self._hide()
            return
        for parameter, kept in self._kept.items():
            parameter.grad = kept
        if self._measures:
            self._measure(list(self._kept), list(self._kept.values()), self._mean_squares)
        self._kept = {}

    def _give_up_measuring(self) -> None:
        """The squared norm of a pass is not that of its pieces, and the pieces are added up already."""
        self._measures = False
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "the gradient noise cannot be measured in steps of several passes where a batch is sent back in "
                "pieces: expected one loss.backward() for each batch, and no reentrant checkpointing "
                "(use_reentrant=False)"
            )

    def _hide(self) -> None:
        """Shows zeros instead of what is kept; always the same, since memory that comes and goes is slow."""
        for parameter, kept in self._kept.items():
            if parameter not in self._zeros:
                self._zeros[parameter] = torch.zeros_like(kept)
        torch._foreach_zero_([self._zeros[parameter] for parameter in self._kept])
        for parameter in self._kept:
            parameter.grad = self._zeros[parameter]
        self._hides = True

    def _add_kept(self, parameters: List[nn.Parameter], gradients: List[Tensor]) -> None:
        """Completes these gradients by what was kept of them."""
        pairs = [(one, self._kept.pop(of)) for of, one in zip(parameters, gradients) if of in self._kept]
        if pairs:
            torch._foreach_add_([one for one, _ in pairs], [kept for _, kept in pairs])

    def _measure(self, parameters: List[nn.Parameter], gradients: List[Tensor], into: List[List[Tensor]]) -> None:
        by_group: Dict[int, List[int]] = {}
        for index, parameter in enumerate(parameters):
            by_group.setdefault(self._group_of[parameter], []).append(index)
        for group, members in by_group.items():
            conditioned = self._conditioned([parameters[i] for i in members], [gradients[i] for i in members])
            if conditioned:
                into[group].extend(norm.double().square() for norm in torch._foreach_norm(conditioned))

    def _conditioned(self, parameters: List[nn.Parameter], gradients: List[Tensor]) -> List[Tensor]:
        """The gradients as the optimiser sees them: Adam's divided by the root of the second moment. Those that have
        none yet are left out then, since they would count in other units."""
        if not parameters or not self.is_preconditioned:
            return gradients
        states = [self._optimizer.state.get(parameter, {}) for parameter in parameters]
        known = [(state, gradient) for state, gradient in zip(states, gradients) if "exp_avg_sq" in state]
        if not known:
            return []
        group = self._optimizer.param_groups[self._group_of[parameters[0]]]
        roots = torch._foreach_sqrt([state["exp_avg_sq"] for state, _ in known])
        steps = _steps(state for state, _ in known)
        torch._foreach_mul_(roots, [(1.0 - group["betas"][1] ** step) ** -0.5 for step in steps])
        torch._foreach_add_(roots, group["eps"])
        return list(torch._foreach_div([gradient for _, gradient in known], roots))


def adapts(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimiser divides by the root of a second moment, as Adam and its kin do."""
    return all("betas" in group and "eps" in group for group in optimizer.param_groups)


def _gradients_of(group: List[nn.Parameter]) -> List[Tensor]:
    return [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in group]


def _steps(states: Iterable[Dict[str, Any]]) -> List[float]:
    """How often each second moment was brought up to date; read all at once, since they may lie on a device."""
    steps = [state["step"] for state in states if "exp_avg_sq" in state]
    return torch.stack(steps).tolist() if steps else []


def _sums(groups: List[List[Tensor]], loss_scale: float) -> List[float]:
    return [float(torch.stack(squares).sum()) / loss_scale**2 if squares else 0.0 for squares in groups]


def _product(some: List[Tensor], others: List[Tensor]) -> float:
    if not some:
        return 0.0
    return float(torch.stack([product.sum(dtype=torch.float64) for product in torch._foreach_mul(some, others)]).sum())


def _square(gradients: List[Tensor]) -> float:
    if not gradients:
        return 0.0
    return float(torch.stack([norm.double() for norm in torch._foreach_norm(gradients)]).square().sum())
