"""How long steps take, split into computing and exchanging."""

from __future__ import annotations

from typing import Dict, Optional


class StepTimes:
    """Times of whole steps of one kind, since the last report."""

    def __init__(self) -> None:
        self._skip = 1
        self._steps = 0
        self._whole = 0.0
        self._exchange = 0.0

    def reset(self) -> None:
        """Steps are of another kind from now on. The first of a kind is never typical."""
        self.__init__()  # type: ignore[misc]

    def add(self, whole: float, exchange: float) -> None:
        """Takes in a step."""
        if self._skip > 0:
            self._skip -= 1
            return
        self._steps += 1
        self._whole += whole
        self._exchange += min(exchange, whole)

    def mean(self) -> Optional[float]:
        """Mean time of a step; nothing before the first typical one."""
        return self._whole / self._steps if self._steps else None

    def take(self, passes: int) -> Dict[str, float]:
        """Mean times since the last call, in the words of the progress protocol."""
        if not self._steps:
            return {}
        whole, exchange = self._whole / self._steps, self._exchange / self._steps
        self._steps, self._whole, self._exchange = 0, 0.0, 0.0
        return {"step_seconds": whole, "compute_seconds": max(whole - exchange, 1e-9) / passes}
