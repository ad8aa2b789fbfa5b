"""Make batches of samples of like length, or of a number of tokens, in the loaders that shuffle a map-style data set.

In: DataLoaders with torch's own batches of a RandomSampler or of a DistributedSampler that shuffles. Out: the same
samples once per epoch, in other batches (`batch_plan`), as many on each rank. The epoch's order still comes from the
script's sampler: from its seed, its generator and its epoch. Other loaders stay as they are.

The lengths are read once, before the first epoch: from a column `length` or `lengths` of the data set if there is one,
otherwise from the samples themselves, for at most `MAX_SCAN_S`. The random state is the same after that as before. The
ranks compare what they have read; if one has nothing or something else, all keep the script's batches.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from functools import wraps
from typing import Any

import torch
import torch.distributed
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler

from flatout.inside.patches.batch_plan import Step, padding_share, plain_batches, plan_batches
from flatout.inside.patches.report import Report
from flatout.sample_order import whole_order

MAX_SCAN_S = 60.0
AGREE_S = 10 * MAX_SCAN_S  # a rank may begin its epoch so much later than another
MIN_SPREAD = 0.05  # standard deviation of the lengths, as a share of their mean: below it there is nothing to balance
_SCANNED_AT_FIRST = 20
_COLUMNS = ("length", "lengths")
_TOKEN_KEYS = ("input_ids", "tokens", "input", "inputs", "src", "text")


def balanced_batches(report: Report, *, max_tokens: int | None = None) -> None:
    report.waits("no loader that shuffles a map-style data set was made")
    original = DataLoader.__init__

    @report.guarded
    def balance(loader: Any) -> None:
        if _can_be_balanced(loader):
            loader.__dict__["batch_sampler"] = BalancedBatches(loader, report, max_tokens)

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        balance(self)

    DataLoader.__init__ = init


def _can_be_balanced(loader: Any) -> bool:
    sampler = loader.sampler
    is_shuffled = type(sampler) is RandomSampler and not sampler.replacement
    is_shuffled |= type(sampler) is DistributedSampler and sampler.shuffle
    return (
        is_shuffled and type(loader.batch_sampler) is BatchSampler and not isinstance(loader.dataset, IterableDataset)
    )


class BalancedBatches(BatchSampler):  # type: ignore[misc]
    """Stands for the loader's own batch sampler, and yields that one's batches if nothing can be balanced."""

    def __init__(self, loader: Any, report: Report, max_tokens: int | None) -> None:
        super().__init__(loader.sampler, loader.batch_size, loader.drop_last)
        self._plain: BatchSampler = loader.batch_sampler
        self._dataset = loader.dataset
        self._report = report
        self._max_tokens = max_tokens
        self._lengths: list[int] | None = None
        self._has_looked = False
        self._num_batches: int | None = None  # of the last epoch that was planned

    def __iter__(self) -> Iterator[list[int]]:
        lengths = self._known_lengths()
        if lengths is None or not self._report.is_on:
            self._num_batches = None
            return iter(self._plain)
        order = whole_order(self.sampler)
        steps = plan_batches(
            order,
            lengths,
            batch_size=self.batch_size,
            num_ranks=self._num_ranks,
            max_tokens=self._max_tokens,
            drop_last=self.drop_last,
        )
        self._tell(order, steps, lengths)
        self._num_batches = len(steps)
        rank = self.sampler.rank if self._is_distributed else 0
        return iter([step[rank] for step in steps])

    def __len__(self) -> int:
        return len(self._plain) if self._num_batches is None else self._num_batches

    def state_dict(self) -> dict[str, Any]:
        """Return no state: the order follows from the sampler's, so that `flatout.checkpoint` can continue it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state

    @property
    def _is_distributed(self) -> bool:
        return isinstance(self.sampler, DistributedSampler)

    @property
    def _num_ranks(self) -> int:
        return int(self.sampler.num_replicas) if self._is_distributed else 1

    def _known_lengths(self) -> list[int] | None:
        if not self._has_looked:
            self._has_looked = True
            lengths = self._report.guarded(read_lengths)(self._dataset, self._report)
            world_size = _world_size()
            if world_size > 1 and self._max_tokens is not None and not self._is_distributed:
                self._report.note("each rank shuffles for itself: their numbers of batches would differ")
                lengths = None
            if world_size > 1 and self._is_distributed:
                lengths = lengths if self._report.guarded(_is_agreed)(lengths, world_size) else None
            self._lengths = lengths
            if lengths is not None:
                self._report.did("loaders")
        return self._lengths

    def _tell(self, order: list[int], steps: list[Step], lengths: list[int]) -> None:
        """Put the padding of this epoch, before and after, into the report."""
        before = plain_batches(order, batch_size=self.batch_size, num_ranks=self._num_ranks)
        after = [batch for step in steps for batch in step]
        self._report.details["padding_before_percent"] = f"{100 * padding_share(before, lengths):.1f}"
        self._report.details["padding_after_percent"] = f"{100 * padding_share(after, lengths):.1f}"


def read_lengths(dataset: Any, report: Report) -> list[int] | None:
    """Return the length of each sample; None, with a note, if they are unknown or hardly differ."""
    if not isinstance(dataset, Sized):
        report.note("a data set does not say how many samples it has")
        return None
    lengths = _column(dataset)
    if lengths is None:
        lengths = _scanned(dataset, report)
    if lengths is None:
        return None
    spread = statistics.pstdev(lengths) / (statistics.fmean(lengths) or 1.0)
    if spread < MIN_SPREAD:
        report.note("the samples of a data set have like lengths: there is nothing to balance")
        return None
    return lengths


def _column(dataset: Any) -> list[int] | None:
    """Return the lengths that the data set has itself."""
    names = getattr(dataset, "column_names", None) or ()
    for name in _COLUMNS:
        column = dataset[name] if name in names else getattr(dataset, name, None)
        if column is not None and not callable(column) and len(column) == len(dataset):
            return [int(length) for length in column]
    return None


def _scanned(dataset: Any, report: Report) -> list[int] | None:
    """Return the lengths of the samples, each made once; None if that would take too long or has no meaning."""
    num_samples = len(dataset)
    lengths: list[int] = []
    before = _random_states()
    began = time.monotonic()
    try:
        for row in range(num_samples):
            length = sample_length(dataset[row])
            if length is None:
                report.note("the samples of a data set have no length that is known here")
                return None
            lengths.append(length)
            spent_s = time.monotonic() - began
            is_forecast = row + 1 >= _SCANNED_AT_FIRST and spent_s / (row + 1) * num_samples > MAX_SCAN_S
            if is_forecast or spent_s > MAX_SCAN_S:
                report.note(f"reading the lengths of {num_samples:,} samples would take more than {MAX_SCAN_S:.0f} s")
                return None
    finally:
        _restore(before)
    return lengths


def sample_length(sample: Any) -> int | None:
    """Return the length of a sample: of its tokens, or of its first part that has one. An image has its pixels."""
    if isinstance(sample, torch.Tensor):
        return sample.numel() if sample.dim() else None
    if hasattr(sample, "shape") and hasattr(sample, "size"):  # of numpy
        return int(sample.size) if len(sample.shape) else None
    if isinstance(sample, (str, bytes)):
        return len(sample)
    if isinstance(sample, Mapping):
        keys = [key for key in _TOKEN_KEYS if key in sample] or list(sample)
        return _first_length(sample[key] for key in keys)
    if isinstance(sample, (list, tuple)):
        return len(sample) if _are_numbers(sample) else _first_length(sample)
    return None


def _are_numbers(items: Sequence[Any]) -> bool:
    return bool(items) and all(isinstance(item, (int, float)) for item in items)


def _first_length(parts: Iterable[Any]) -> int | None:
    """Return the length of the first part that has one."""
    lengths = map(sample_length, parts)
    return next((length for length in lengths if length is not None), None)


def _world_size() -> int:
    distributed = torch.distributed
    is_initialized = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if is_initialized else 1


def _is_agreed(lengths: list[int] | None, world_size: int) -> bool:
    """Whether all ranks have read the same lengths. They compare them in the job's store, not in a collective."""
    store = torch.distributed.distributed_c10d._get_default_store()
    mine = "none" if lengths is None else f"{zlib.crc32(repr(lengths).encode()):08x}"
    prefix = f"flatout/balanced_batches/{_AGREEMENTS.next_number()}"
    store.add(f"{prefix}/{mine}", 1)
    store.add(f"{prefix}/all", 1)
    until = time.monotonic() + AGREE_S
    while store.add(f"{prefix}/all", 0) < world_size:
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return lengths is not None and store.add(f"{prefix}/{mine}", 0) == world_size


class _Agreements:
    """Numbers what the ranks agree on, in the order in which each of them does."""

    def __init__(self) -> None:
        self._number = 0

    def next_number(self) -> int:
        self._number += 1
        return self._number


_AGREEMENTS = _Agreements()


def _random_states() -> tuple[Any, Any, Any]:
    numpy = sys.modules.get("numpy")
    of_numpy = None if numpy is None else numpy.random.get_state()
    return torch.get_rng_state(), random.getstate(), of_numpy


def _restore(states: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        sys.modules["numpy"].random.set_state(states[2])
