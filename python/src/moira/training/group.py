"""The process group of a run, and what its workers tell each other in it after every step."""

from __future__ import annotations

import io
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, List, Optional

import torch
import torch.distributed as dist

#: Workers that have not met after this long will not.
MEET_WITHIN = timedelta(minutes=5)


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

    def meet(self, place: Place) -> None:
        """Waits for all workers."""
        if place.workers == 1:
            return
        dist.init_process_group(
            self._backend,
            init_method=f"tcp://{place.address}:{place.port}",
            rank=place.rank,
            world_size=place.workers,
            timeout=MEET_WITHIN,
        )
        self.handle = dist.group.WORLD

    def part(self) -> None:
        """Leaves the others."""
        if self.handle is not None:
            dist.destroy_process_group()
            self.handle = None

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
        rank = dist.get_rank()
        content = torch.frombuffer(bytearray(_packed(state)), dtype=torch.uint8) if rank == 0 else torch.empty(0)
        length = torch.tensor([content.numel()], dtype=torch.int64, device=self._device)
        dist.broadcast(length, src=0)
        size = int(length.item())
        content = content.to(self._device) if rank == 0 else torch.empty(size, dtype=torch.uint8, device=self._device)
        dist.broadcast(content, src=0)
        return state if rank == 0 else unpacked(io.BytesIO(content.cpu().numpy().tobytes()))


def _packed(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpacked(file: Any) -> Any:
    """A state as it was saved. It comes from this job's own directory or workers, and may hold what users registered,
    which is more than tensors."""
    return torch.load(file, map_location="cpu", weights_only=False)
