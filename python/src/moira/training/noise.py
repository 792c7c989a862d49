"""Signal and noise of gradients, estimated while a job trains (McCandlish et al. 2018, appendix A; Pollux, OSDI 2021,
section 3.1).

A gradient averaged over more examples has less noise. So the difference between the mean square of the parts and the
square of their mean tells noise from signal. A lone worker that takes one pass a step has no parts: it compares
successive gradients instead, which takes movement of the true gradient for noise.

Only squared norms come in here, after loss scaling is undone and after the optimiser's preconditioner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, List

#: What a step of the designed batch leaves of the past.
KEPT = 0.999
#: Some noise there always is.
LEAST_VARIANCE = 1e-6


@dataclass
class Average:
    """An exponential average and the weight it has gathered, so that its beginning does not pull it to zero."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, kept: float) -> None:
        """Takes in a value, of the past leaving this share."""
        self.total = kept * self.total + (1.0 - kept) * value
        self.weight = kept * self.weight + (1.0 - kept)

    def value_or(self, otherwise: float) -> float:
        """The average so far."""
        return self.total / self.weight if self.weight > 0.0 else otherwise


@dataclass
class GroupNoise:
    """The running estimate for one group of parameters, at the designed batch size."""

    _sqr: Average = field(default_factory=Average)
    _var: Average = field(default_factory=Average)

    @property
    def sqr(self) -> float:
        """The squared norm of the true gradient."""
        return max(self._sqr.value_or(1.0), 0.0)

    @property
    def var(self) -> float:
        """The trace of the covariance of a gradient of the designed batch."""
        return max(self._var.value_or(0.0), LEAST_VARIANCE)

    def gain(self, scale: float) -> float:
        """What a step of so many times the designed batch is worth, in steps of the designed batch."""
        return gain(self.sqr, self.var, scale)


class NoiseEstimator:
    """The noise of all groups of parameters of an optimiser."""

    def __init__(self, groups: int) -> None:
        self.groups = [GroupNoise() for _ in range(groups)]
        self._is_differenced = False
        self._is_preconditioned = False

    def reset(self) -> None:
        """Forgets everything."""
        self.groups = [GroupNoise() for _ in self.groups]
        self._is_differenced = False

    def measured_as_adam_sees(self, is_preconditioned: bool) -> None:
        """Whether norms are of divided gradients from now on. Those of others were measured in other units."""
        if is_preconditioned != self._is_preconditioned:
            self.reset()
            self._is_preconditioned = is_preconditioned

    def observe(
        self, mean_of_squares: List[float], square_of_mean: List[float], parts: int, scale: float, steps: int = 1
    ) -> None:
        """Takes in a step whose batch was ``scale`` times the designed one, made of this many parts: for each group the
        mean of their squared norms and the squared norm of their mean. It stands for so many steps. Norms that are not
        finite, as mixed precision has them now and then, are passed over."""
        assert parts > 1, "one part has nothing to be compared with"
        if self._is_differenced:
            self.reset()
        self._take(mean_of_squares, square_of_mean, parts, scale, steps)

    def observe_lone(
        self, before: List[float], now: List[float], product: List[float], scale: float, steps: int = 1
    ) -> None:
        """The same for a step of one part: the squared norm of the gradient before, of its own, and their product."""
        self._is_differenced = True
        mean_of_squares = [(b + n) / 2.0 for b, n in zip(before, now)]
        square_of_mean = [(b + 2.0 * p + n) / 4.0 for b, n, p in zip(before, now, product)]
        self._take(mean_of_squares, square_of_mean, 2, 2.0 * scale, steps)

    def _take(
        self, mean_of_squares: List[float], square_of_mean: List[float], parts: int, scale: float, steps: int
    ) -> None:
        if not all(map(math.isfinite, [*mean_of_squares, *square_of_mean])):
            return
        kept = KEPT ** (scale * steps)
        for group, squares, mean in zip(self.groups, mean_of_squares, square_of_mean):
            group._sqr.add((parts * mean - squares) / (parts - 1), kept)
            group._var.add((squares - mean) * scale / (parts - 1), kept)

    @property
    def is_known(self) -> bool:
        """Whether anything was observed yet."""
        return all(group._sqr.weight > 0.0 for group in self.groups)

    @property
    def sqr(self) -> float:
        """Over all groups."""
        return sum(group.sqr for group in self.groups)

    @property
    def var(self) -> float:
        """Over all groups."""
        return sum(group.var for group in self.groups)

    def gain(self, scale: float) -> float:
        """What a step of so many times the designed batch is worth, in steps of the designed batch."""
        return gain(self.sqr, self.var, scale)

    def state_dict(self) -> Dict[str, object]:
        """All of it as plain numbers."""
        groups = [[g._sqr.total, g._sqr.weight, g._var.total, g._var.weight] for g in self.groups]
        return {"groups": groups, "differenced": self._is_differenced, "preconditioned": self._is_preconditioned}

    def load_state_dict(self, state: Dict[str, object]) -> None:
        """Takes up where another has left off; what has another number of groups is of another model."""
        saved = state["groups"]
        assert isinstance(saved, list)
        if len(saved) != len(self.groups):
            return
        self._is_differenced = bool(state["differenced"])
        self._is_preconditioned = bool(state.get("preconditioned", False))
        self.groups = [GroupNoise(Average(a, b), Average(c, d)) for a, b, c, d in saved]


def gain(sqr: float, var: float, scale: float) -> float:
    """Steps of the designed batch that one of ``scale`` times that batch stands for (r of AdaScale)."""
    worth = var / scale + sqr
    return (var + sqr) / worth if worth > 0.0 else 1.0
