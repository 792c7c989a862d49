"""What happens to gradients between a backward pass and the optimiser's step: they are weighed, measured and exchanged.

The parts of a step are its passes on all workers. Each part counts by its examples, so the gradient of a step is that
of its examples whoever took them, also where they cannot be cut evenly. The squared norm of each part is what the noise
estimate lives on.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from moira.training.sampler import Share

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
        self._of_pass: Dict[nn.Parameter, Tensor] = {}
        self._kept: Dict[nn.Parameter, Tensor] = {}
        self._squares: List[List[Tensor]] = []
        self._mean_squares: List[List[Tensor]] = []
        self._before: Optional[List[List[Tensor]]] = None
        self._before_was_preconditioned = False
        self._ready_at = 0.0

    def group_count(self) -> int:
        """Groups of parameters of the optimiser."""
        return len(self._groups)

    def begin_step(self, share: Share, workers: int, measures: bool) -> None:
        """A step of these passes comes, and may be measured."""
        self._measures = measures
        self._workers = workers
        self._weights = [len(examples) * workers / share.size for examples in share.passes]
        self._squares, self._of_pass = [[] for _ in self._groups], {}
        self._mean_squares, self._kept = [[] for _ in self._groups], {}
        self._listen(len(share.passes) > 1)

    def begin_pass(self, number: int) -> None:
        """The forward and backward pass of this number comes."""
        self._measure_pass()
        self._pass = number

    def exchange(self, group, bucket):  # type: ignore[no-untyped-def]
        """The hook of DistributedDataParallel: called with gradients as soon as the backward pass has them, when they
        are to be averaged over all workers. It has no annotations, since they would be compared with the classes
        themselves, and ours are text."""
        buffer: Tensor = bucket.buffer()
        # Of several passes each gradient was measured and weighed when it came.
        if len(self._weights) == 1:
            if self._measures:
                self._measure(bucket.parameters(), bucket.gradients(), self._squares)
            if self._weights[0] != 1.0:
                buffer.mul_(self._weights[0])
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
        """Brings back what was kept of parameters that the last pass did not use, to gradients that are unscaled."""
        if self._kept and self._workers > 1:
            raise RuntimeError(
                f"{len(self._kept)} parameters were used by some passes of a step and not by its last one, which "
                "several workers cannot exchange: use every parameter in every pass, or submit the job with one worker"
            )
        for parameter, kept in self._kept.items():
            unscaled = kept / loss_scale
            parameter.grad = unscaled if parameter.grad is None else parameter.grad + unscaled
        self._kept = {}

    def squares(self, loss_scale: float) -> Tuple[List[float], List[float]]:
        """For each group, the squared norms of this worker's parts of the step, added up, and the squared norm of the
        gradient of the whole step, as it was before the user's loop did anything to it. Of steps with several parts."""
        self._measure_pass()
        return _sums(self._squares, loss_scale), _sums(self._mean_squares, loss_scale)

    def compare_with_before(self) -> Optional[List[List[float]]]:
        """For each group the squared norm of the gradient of the step before, of this one, and their product; nothing
        if there is nothing to compare with. Of a worker whose steps have one part."""
        now = [self._conditioned(group, _gradients_of(group)) for group in self._groups]
        before, was_preconditioned = self._before, self._before_was_preconditioned
        self._remember(now)
        if before is None or was_preconditioned != self._before_was_preconditioned:
            return None
        pairs = list(zip(before, now))
        return [
            [_square(old) for old, _ in pairs],
            [_square(new) for _, new in pairs],
            [_product(*pair) for pair in pairs],
        ]

    def remember(self) -> None:
        """The next step will be compared with this one."""
        self._remember([self._conditioned(group, _gradients_of(group)) for group in self._groups])

    def _remember(self, now: List[List[Tensor]]) -> None:
        self._before_was_preconditioned = self._is_preconditioned()
        # What was divided is memory of its own already; the others are overwritten by the next step.
        self._before = now if self._before_was_preconditioned else [[one.clone() for one in group] for group in now]

    def forget_before(self) -> None:
        """The next step is not the successor of the last one."""
        self._before = None

    def _listen(self, several_passes: bool) -> None:
        """With several passes each gradient is weighed and measured, and kept until the last one completes it. Before
        that there is nothing to be seen of it, so that a loop that clips gradients clips those of the whole step."""
        if several_passes and not self._hooks:
            self._hooks = [parameter.register_hook(self._on_gradient(parameter)) for parameter in self._group_of]
        elif not several_passes and self._hooks:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []

    def _on_gradient(self, parameter: nn.Parameter) -> Any:
        def weigh(gradient: Tensor) -> Tensor:
            if self._measures:
                self._of_pass[parameter] = gradient
            sum_so_far = gradient * self._weights[self._pass]
            if parameter in self._kept:
                sum_so_far += self._kept.pop(parameter)
            if self._pass + 1 < len(self._weights):
                self._kept[parameter] = sum_so_far
                return torch.zeros_like(gradient)
            if self._measures and self._workers == 1:
                self._measure([parameter], [sum_so_far], self._mean_squares)
            return sum_so_far

        return weigh

    def _measure_pass(self) -> None:
        """All gradients of a pass at once, which is quicker than one by one as they come."""
        if self._of_pass:
            self._measure(list(self._of_pass), list(self._of_pass.values()), self._squares)
            self._of_pass = {}

    def _measure(self, parameters: List[nn.Parameter], gradients: List[Tensor], into: List[List[Tensor]]) -> None:
        by_group: Dict[int, List[int]] = {}
        for index, parameter in enumerate(parameters):
            by_group.setdefault(self._group_of[parameter], []).append(index)
        for group, members in by_group.items():
            conditioned = self._conditioned([parameters[i] for i in members], [gradients[i] for i in members])
            into[group].extend(norm.double().square() for norm in torch._foreach_norm(conditioned))

    def _conditioned(self, parameters: List[nn.Parameter], gradients: List[Tensor]) -> List[Tensor]:
        """The gradients as the optimiser sees them: Adam's divided by the root of the second moment."""
        if not parameters or not self._is_preconditioned():
            return gradients
        states = [self._optimizer.state.get(parameter, {}) for parameter in parameters]
        if any("exp_avg_sq" not in state for state in states):
            return gradients
        group = self._optimizer.param_groups[self._group_of[parameters[0]]]
        correction = 1.0 - group["betas"][1] ** float(states[0]["step"])
        roots = torch._foreach_sqrt([state["exp_avg_sq"] for state in states])
        torch._foreach_mul_(roots, correction**-0.5)
        torch._foreach_add_(roots, group["eps"])
        return list(torch._foreach_div(gradients, roots))

    def _is_preconditioned(self) -> bool:
        first = self._groups[0][0] if self._groups and self._groups[0] else None
        state = self._optimizer.state.get(first, {}) if first is not None else {}
        return "exp_avg_sq" in state and float(state["step"]) >= _TRUSTED_AFTER


def adapts(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimiser divides by the root of a second moment, as Adam and its kin do."""
    return all("betas" in group and "eps" in group for group in optimizer.param_groups)


def _gradients_of(group: List[nn.Parameter]) -> List[Tensor]:
    return [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in group]


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
