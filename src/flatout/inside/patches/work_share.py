"""Give one rank fewer samples of each step, and the others the rest: as many samples per step and as many steps.

In: DataLoaders with torch's own batches of a DistributedSampler. Out: the same order of the epoch, from the script's
sampler, dealt unevenly: one rank gets `percent` % of its samples, and the other ranks share what it leaves. Other
loaders stay as they are.

DistributedDataParallel takes the mean over the ranks, so a sample of the rank with fewer samples counts for more than
one of the others: this is another training, not another way to compute the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from flatout.inside.patches.report import Report
from flatout.sample_order import whole_order


def work_share(report: Report, *, rank: int = 0, percent: int = 100) -> None:
    report.waits("no loader with a DistributedSampler was made")
    original = DataLoader.__init__

    @report.guarded
    def share(loader: Any) -> None:
        if _can_be_shared(loader, rank):
            loader.__dict__["batch_sampler"] = SharedBatches(loader, report, rank, percent)
            report.did("loaders")

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        share(self)

    DataLoader.__init__ = init


def _can_be_shared(loader: Any, rank: int) -> bool:
    sampler = loader.sampler
    is_plain = type(loader.batch_sampler) is BatchSampler and not isinstance(loader.dataset, IterableDataset)
    return is_plain and type(sampler) is DistributedSampler and sampler.num_replicas > 1 and rank < sampler.num_replicas


def shares(batch_size: int, num_ranks: int, rank: int, percent: int) -> list[int]:
    """Return the samples of each rank in a step: their sum is that of equal batches."""
    fewer = max(batch_size * percent // 100, 1)
    more, left = divmod(batch_size - fewer, num_ranks - 1)
    others = [batch_size + more + (number < left) for number in range(num_ranks - 1)]
    return [*others[:rank], fewer, *others[rank:]]


class SharedBatches(BatchSampler):  # type: ignore[misc]
    """Stands for the loader's own batch sampler."""

    def __init__(self, loader: Any, report: Report, rank: int, percent: int) -> None:
        super().__init__(loader.sampler, loader.batch_size, loader.drop_last)
        self._plain: BatchSampler = loader.batch_sampler
        self._report = report
        self._sizes = shares(loader.batch_size, loader.sampler.num_replicas, rank, percent)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches() if self._report.is_on else self._plain)

    def _batches(self) -> Iterator[list[int]]:
        sampler, num_in_step = self.sampler, sum(self._sizes)
        order = whole_order(sampler)
        begin = sum(self._sizes[: sampler.rank])
        num_full = len(order) // num_in_step
        for step in range(num_full):
            first = step * num_in_step + begin
            yield order[first : first + self._sizes[sampler.rank]]
        rest = order[num_full * num_in_step :]
        if rest and not self.drop_last:
            lacking = max(sampler.num_replicas - len(rest), 0)  # each rank needs a sample, as with torch's own padding
            yield (rest + order[:lacking])[sampler.rank :: sampler.num_replicas]

    def __len__(self) -> int:
        if not self._report.is_on:
            return len(self._plain)
        num_samples, num_in_step = len(self.sampler.dataset), sum(self._sizes)
        return num_samples // num_in_step if self.drop_last else -(-num_samples // num_in_step)

    def state_dict(self) -> dict[str, Any]:
        """Return no state: the order follows from the sampler's, so that `flatout.checkpoint` can continue it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state
