"""By how much the learning rate is raised when the batch is larger than designed, for the length of one step.

AdaScale (Johnson et al., ICML 2020) follows the measured noise; the others follow the batch alone. ``scale`` is always
the batch over the designed batch, and progress is counted in steps of the designed batch.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, List, Protocol, Union

from moira.training.noise import NoiseEstimator


class Rule(Protocol):
    """A way to scale the learning rate."""

    def factors(self, noise: NoiseEstimator, scale: float, progress: float) -> List[float]:
        """One for each group of parameters."""


class AdaScale:
    """The gain of each group: as much as the step is worth. For SGD."""

    def factors(self, noise: NoiseEstimator, scale: float, progress: float) -> List[float]:
        """See ``Rule``."""
        return [group.gain(scale) for group in noise.groups]


class AdamScale:
    """The square root of the gain, for optimisers that divide by the root of the second moment."""

    def factors(self, noise: NoiseEstimator, scale: float, progress: float) -> List[float]:
        """See ``Rule``."""
        return [math.sqrt(group.gain(scale)) for group in noise.groups]


class Linear:
    """As many times as the batch (Goyal et al. 2017)."""

    def factors(self, noise: NoiseEstimator, scale: float, progress: float) -> List[float]:
        """See ``Rule``."""
        return [scale for _ in noise.groups]


class SquareRoot:
    """The square root of that (Krizhevsky 2014)."""

    def factors(self, noise: NoiseEstimator, scale: float, progress: float) -> List[float]:
        """See ``Rule``."""
        return [math.sqrt(scale) for _ in noise.groups]


class Legw:
    """The square root, with a warm-up of so many epochs of the designed batch, longer in proportion to the batch
    (You et al. 2019)."""

    def __init__(self, warmup_epochs: float, examples: int, batch: int) -> None:
        if warmup_epochs < 0 or examples < 1 or batch < 1:
            raise ValueError(
                "expected warmup_epochs of at least 0 and a positive number of examples and batch, "
                f"found {warmup_epochs}, {examples} and {batch}"
            )
        self._steps = warmup_epochs * examples / batch

    def factors(self, noise: NoiseEstimator, scale: float, progress: float) -> List[float]:
        """See ``Rule``."""
        warmup = self._steps * scale
        warmed = min(1.0, progress / warmup) if warmup > 0 else 1.0
        return [math.sqrt(scale) * warmed for _ in noise.groups]


RULES: Dict[str, Callable[[], Rule]] = {
    "adascale": AdaScale,
    "adamscale": AdamScale,
    "linear": Linear,
    "sqrt": SquareRoot,
}


def rule_for(wanted: Union[str, Rule], optimizer_adapts: bool) -> Rule:
    """The rule of this name; ``auto`` is AdaScale, or its square root for optimisers that adapt by themselves."""
    if not isinstance(wanted, str):
        return wanted
    if wanted == "auto":
        return AdamScale() if optimizer_adapts else AdaScale()
    if wanted not in RULES:
        known = ", ".join(["auto", *RULES])
        raise ValueError(f"learning_rate: expected one of {known}, or a rule such as moira.Legw(…), found {wanted!r}")
    return RULES[wanted]()
