"""The process group of a run, and what its workers tell each other in it after every step."""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Dict, List, Optional

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

log = logging.getLogger("moira")

#: Workers that have not met after this long will not.
MEET_WITHIN = timedelta(minutes=5)
#: How long they wait for each other afterwards: one may evaluate, or read a large state, while the others have nothing
#: to do. One that dies is seen at once.
WAIT_WITHIN = timedelta(hours=2)
#: How long a worker that leaves waits for the others to have heard everything. Those who are gone will not say so.
PART_WITHIN = timedelta(seconds=10)


@dataclass
class Place:
    """This worker among the others, and where they meet."""

    rank: int
    workers: int
    address: str
    port: int

    def move(self, rank: int, workers: int, address: str, port: int) -> None:
        """The others are others now."""
        self.rank, self.workers, self.address, self.port = rank, workers, address, port


class Group:
    """The workers of a run as they are now. A lone worker needs no process group."""

    def __init__(self, backend: Optional[str], device: torch.device) -> None:
        self._backend = backend or ("nccl" if device.type == "cuda" else "gloo")
        self._device = device if self._backend == "nccl" else torch.device("cpu")
        self.handle: Optional[Any] = None
        self._store: Optional[Any] = None

    def meet(self, place: Place) -> None:
        """Waits for all workers."""
        if place.workers == 1:
            return
        where = f"tcp://{place.address}:{place.port}"
        self._store, rank, workers = next(rendezvous(where, place.rank, place.workers, timeout=MEET_WITHIN))
        dist.init_process_group(self._backend, store=self._store, rank=rank, world_size=workers, timeout=WAIT_WITHIN)
        self.handle = dist.group.WORLD

    def say_goodbye(self) -> None:
        """Waits until every worker has heard all that was said: a connection that is closed takes with it what the
        other side has not read yet."""
        if self.handle is None or self._store is None:
            return
        names = [f"goodbye/{rank}" for rank in range(dist.get_world_size())]
        try:
            self._store.set(names[dist.get_rank()], "said")
            self._store.wait(names, PART_WITHIN)
        except RuntimeError as error:
            # The first worker keeps the book: it may have read the last of them, and left.
            log.debug("not all workers said goodbye: %s", error)

    def part(self) -> None:
        """Leaves the others."""
        if self.handle is not None:
            dist.destroy_process_group()
            self.handle = self._store = None

    def total(self, numbers: List[float]) -> List[float]:
        """The numbers added up over all workers."""
        if self.handle is None:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor, group=self.handle)
        return tensor.tolist()  # type: ignore[no-any-return]

    def hand_over(self, state: Optional[Any]) -> Any:
        """What the first worker has, for all; it may be nothing."""
        if self.handle is None:
            return state
        is_first = dist.get_rank() == 0
        packed = bytearray(_packed(state)) if is_first else bytearray()
        length = torch.tensor([len(packed)], dtype=torch.int64, device=self._device)
        dist.broadcast(length, src=0)
        packed = packed if is_first else bytearray(int(length.item()))
        content = torch.frombuffer(packed, dtype=torch.uint8)
        sent = content.to(self._device)
        dist.broadcast(sent, src=0)
        if is_first:
            return state
        # The same memory on the processor; from elsewhere it is brought there.
        content.copy_(sent)
        return unpacked(io.BytesIO(packed))

    def follow_first(self, tensors: List[torch.Tensor]) -> None:
        """Gives all workers the values that the first one has in these."""
        if self.handle is None:
            return
        by_type: Dict[torch.dtype, List[torch.Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        for alike in by_type.values():
            # In one piece, since every exchange has its price.
            piece = torch.cat([tensor.detach().flatten() for tensor in alike]).to(self._device)
            dist.broadcast(piece, src=0)
            for tensor, values in zip(alike, piece.split([tensor.numel() for tensor in alike])):
                tensor.detach().copy_(values.view_as(tensor))


def _packed(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpacked(file: Any) -> Any:
    """A state as it was saved. It comes from this job's own directory or workers, and may hold what users registered,
    which is more than tensors."""
    return torch.load(file, map_location="cpu", weights_only=False)
