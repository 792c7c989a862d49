"""A data loader whose batches follow the scheduler: the user's own one, with another choice of examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, List, Optional

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from moira.training.sampler import ElasticOrder, Share

if TYPE_CHECKING:
    from moira.training.loop import Loop


class ElasticLoader:
    """Yields the batches of this worker, one for each pass."""

    def __init__(self, loader: DataLoader[Any], order: ElasticOrder, loop: Loop) -> None:
        self._loader = loader
        self._order = order
        self._loop = loop
        self.dataset = loader.dataset
        self.batch_size = loader.batch_size

    def __len__(self) -> int:
        """Passes of this worker over its share of the data, with the present batch."""
        layout = self._loop.layout()
        steps = -(-self._order.examples // layout.batch)
        return steps * layout.passes

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch; what was done of it before a restart is left out."""
        self._loop.begin()
        self._loop.turn()
        while not self._loop.is_epoch_over():
            yield from self._batches()
        self._loop.end_epoch()

    def _batches(self) -> Iterator[Any]:
        """Until the pass over the data or the epoch ends, or steps are to be cut in another way."""
        layout, rank = self._loop.layout(), self._loop.rank
        shares = self._order.shares(layout, rank)
        planned = (examples for share in self._order.shares(layout, rank) for examples in share.passes)
        batches = iter(_with_batches(self._loader, planned))
        for share in shares:
            self._loop.begin_step(share)
            yield from self._passes(share, batches)
            self._loop.end_step(share)
            # Of as many workers as before, this one may have become another.
            if (self._loop.layout(), self._loop.rank) != (layout, rank) or self._loop.is_epoch_over():
                return

    def _passes(self, share: Share, batches: Iterator[Any]) -> Iterator[Any]:
        for number in range(len(share.passes)):
            batch = next(batches)
            self._loop.begin_pass(number)
            yield batch


def check(loader: DataLoader[Any]) -> bool:
    """Refuses what cannot be cut anew; says whether examples come in random order."""
    if not isinstance(loader, DataLoader):
        raise TypeError(f"moira.wrap: expected a torch.utils.data.DataLoader, found {type(loader).__name__}")
    if isinstance(loader.dataset, IterableDataset):
        raise TypeError(
            "moira.wrap: the data set is an IterableDataset, whose examples have no numbers; "
            "expected one with __getitem__ and __len__"
        )
    if loader.batch_size is None:
        raise TypeError("moira.wrap: expected a DataLoader with batch_size=…, over all workers, found none")
    if isinstance(loader.sampler, RandomSampler):
        return True
    if isinstance(loader.sampler, SequentialSampler):
        return False
    raise TypeError(
        f"moira.wrap: the DataLoader has a sampler of its own ({type(loader.sampler).__name__}); "
        "expected shuffle=True or shuffle=False, Moira shares out the examples itself"
    )


def _with_batches(loader: DataLoader[Any], planned: Iterator[List[int]]) -> DataLoader[Any]:
    """The same loader, for these batches."""
    prefetch: Optional[int] = loader.prefetch_factor if loader.num_workers > 0 else None
    return DataLoader(
        loader.dataset,
        batch_sampler=planned,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=prefetch,
    )
