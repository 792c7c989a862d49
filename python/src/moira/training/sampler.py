"""Which examples each worker takes in each step: one order for all, cut anew whenever workers or batch change.

The order of a pass depends on the seed and the number of the pass alone, and the position in it is counted in examples.
So a training goes on with any number of workers where it was, without an example lost or taken twice within a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterator, List, Tuple

import torch


@dataclass(frozen=True)
class Layout:
    """How a step is cut."""

    #: Examples of a whole step, over all workers.
    batch: int
    workers: int
    #: Passes of each worker in a step.
    passes: int


@dataclass(frozen=True)
class Share:
    """One worker's part of a step."""

    #: Examples of the whole step.
    size: int
    #: For each of its passes, which examples.
    passes: List[List[int]]


class ElasticOrder:
    """The order of all examples over all passes, and how far it was followed."""

    def __init__(self, examples: int, shuffle: bool, seed: int, least_rest: int) -> None:
        if examples < least_rest:
            raise ValueError(f"the data set has {examples} examples, fewer than the {least_rest} workers of this job")
        self.examples = examples
        self._shuffle = shuffle
        self._seed = seed
        # What is left of a pass must suffice for every worker that may ever share it; less is taken with the step
        # before. It must not depend on how many there are now, or the steps would.
        self._least_rest = least_rest
        self.passes = 0
        self.position = 0
        self._cached: Tuple[int, List[int]] = (-1, [])

    def step_size(self, batch: int, position: int) -> int:
        """Examples of the step that begins at a position."""
        left = self.examples - position
        return left if left < batch + self._least_rest else batch

    def shares(self, layout: Layout, rank: int) -> Iterator[Share]:
        """What a worker takes in the steps from the present position to the end of the pass."""
        position = self.position
        order = self._order()
        while position < self.examples:
            size = self.step_size(layout.batch, position)
            yield Share(size, _cut(order[position : position + size], layout, rank))
            position += size

    def advance(self, size: int) -> None:
        """A step of so many examples was made."""
        self.position += size
        assert self.position <= self.examples, "a step never reaches into the next pass"
        if self.position == self.examples:
            self.passes += 1
            self.position = 0

    def state_dict(self) -> Dict[str, int]:
        """Where it is."""
        return {"examples": self.examples, "passes": self.passes, "position": self.position, "seed": self._seed}

    def load_state_dict(self, state: Dict[str, int]) -> None:
        """Goes on there."""
        if state["examples"] != self.examples:
            raise ValueError(
                f"the state was saved with a data set of {state['examples']} examples, and this one has "
                f"{self.examples}: go on with the same data, or empty the checkpoint directory to begin anew"
            )
        self.passes, self.position, self._seed = state["passes"], state["position"], state["seed"]

    def _order(self) -> List[int]:
        number, order = self._cached
        if number != self.passes:
            order = self._shuffled() if self._shuffle else list(range(self.examples))
            self._cached = (self.passes, order)
        return order

    def _shuffled(self) -> List[int]:
        generator = torch.Generator()
        generator.manual_seed(self._seed * 1_000_003 + self.passes)
        return torch.randperm(self.examples, generator=generator).tolist()  # type: ignore[no-any-return]


def _cut(examples: List[int], layout: Layout, rank: int) -> List[List[int]]:
    """Even parts in order; the first ones have one example more where it does not come out even. Fewer passes if there
    is too little for all."""
    passes = min(layout.passes, len(examples) // layout.workers)
    parts = layout.workers * passes
    least, more = divmod(len(examples), parts)

    def begin(part: int) -> int:
        return part * least + min(part, more)

    return [examples[begin(part) : begin(part + 1)] for part in range(rank * passes, (rank + 1) * passes)]
