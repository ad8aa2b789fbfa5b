"""Pack a data set: plan the shards, write those that are missing, and write the index.

In: a `PackRequest` and an engine. Out: a `PackResult`. A pack that was interrupted at any moment continues where it
was when the same request is made again. Raises InputError that names the damaged samples, OutputError for a folder that
holds something else, and UsageError for options that do not fit the source. Nothing of the source is changed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from flatout.errors import InputError, OutputError
from flatout.inside.protocol import partial_name
from flatout.packing.engines import Engine
from flatout.packing.gain import packing_gain
from flatout.packing.index import read_index, read_samples, write_index
from flatout.packing.plan import PackingPlan, PlannedShard, make_plan
from flatout.packing.reading import is_read_unchanged, reading_lines
from flatout.packing.request import PackRequest
from flatout.packing.shard import STATE, ShardTask, begin_plan, begun_plan
from flatout.packing.sources import Listing, read_source
from flatout.records.packing import (
    CellContent,
    DamagedSample,
    FileContent,
    LineContent,
    PackedShard,
    PackedSplit,
    PackIndex,
    PackingGain,
    PackResult,
    ShardRecord,
    SourceSample,
)
from flatout.units import num_bytes

_MAX_NAMED = 10
_NUM_MEASURED_SIZES = 1000
_SPARE_SHARE = 0.02  # of the disk's bytes for heads of tar members and the index
_TAR_HEAD_BYTES = 3 * 512 + 256  # per member, with its padding


def preview(request: PackRequest) -> tuple[Listing, PackingPlan, PackingGain]:
    """Read the source, plan its shards, and measure what packing will bring. Nothing is written."""
    request.check()
    listing = read_source(request)
    plan = make_plan(listing, request, _mean_bytes(listing.samples))
    return listing, plan, packing_gain(listing)


def pack(
    request: PackRequest,
    engine: Engine,
    *,
    is_dry_run: bool = False,
    before: Callable[[PackResult], None] = lambda result: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PackResult:
    """Pack the data set. `before` is called with what is planned, before anything is written."""
    listing, plan, gain = preview(request)
    planned = _result(request, listing, plan, gain)
    before(planned)
    if is_dry_run:
        return planned
    folder = request.folder
    with _locked(folder, plan):
        index = read_index(folder)
        if index is not None:
            _refuse_changed(listing, folder)
            shutil.rmtree(folder / STATE, ignore_errors=True)
            return _written(planned, index, num_kept=len(plan.shards))
        tasks = [_task(request, listing, plan, shard) for shard in plan.shards]
        _check_space(folder, listing)
        records: list[ShardRecord] = []
        damaged: list[DamagedSample] = []
        num_kept = 0
        for outcome in engine(tasks):
            damaged += outcome.damaged
            num_kept += outcome.is_kept
            if outcome.record is not None:
                records.append(outcome.record)
            progress(len(records), len(tasks))
        if damaged:
            raise _damage(damaged, listing)
        index = _index(request, listing, plan, records)
        samples = sorted((sample for record in records for sample in record.samples), key=lambda one: one.index)
        assert [sample.index for sample in samples] == list(range(len(listing.samples)))
        write_index(folder, index, samples)
        shutil.rmtree(folder / STATE, ignore_errors=True)
    return _written(planned, index, num_kept=num_kept)


@contextmanager
def _locked(folder: Path, plan: PackingPlan) -> Iterator[None]:
    """Take the folder for this pack alone. Raise OutputError if it holds anything else, or another pack is running."""
    state = folder / STATE
    try:
        is_new = not folder.exists() or not any(folder.iterdir())
        existing = read_index(folder)
        if existing is not None and existing.plan != plan.digest:
            raise OutputError(
                f"`{folder}` holds another pack, and nothing is overwritten", hint="pass another folder, or remove it"
            )
        if not is_new and existing is None and not state.is_dir():
            raise OutputError(f"`{folder}` must be a new folder or a pack, but has other files")
        state.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OutputError(f"`{folder}` cannot be written: {(error.strerror or str(error)).lower()}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OutputError(
                f"another `flatout data pack` is writing to `{folder}`", hint="wait until it has ended"
            ) from None
        _begin(folder, plan)
        yield
    finally:
        os.close(descriptor)


def _begin(folder: Path, plan: PackingPlan) -> None:
    """Note the plan, or check that it is the one that was begun; remove what killed processes left incomplete."""
    begun = begun_plan(folder)
    if begun not in (None, plan.digest):
        raise OutputError(
            f"`{folder}` holds the beginning of a pack of other samples or with other options",
            hint="repeat the command as it was, or remove the folder",
        )
    partials = partial_name("*")
    for partial in (*folder.glob(partials), *(folder / STATE).glob(partials)):
        partial.unlink(missing_ok=True)
    begin_plan(folder, plan.digest)


def _refuse_changed(listing: Listing, folder: Path) -> None:
    """Raise OutputError if a file changed since it was packed."""
    for sample, packed in zip(listing.samples, read_samples(folder), strict=True):
        if sample.content is None:
            continue
        changed_ns = os.stat(sample.content.path).st_mtime_ns
        if changed_ns != packed.source_mtime_ns:
            raise OutputError(
                f"{sample.name} changed since `{folder}` was packed, and nothing is overwritten",
                hint="pass another folder, or remove it",
            )


def _task(request: PackRequest, listing: Listing, plan: PackingPlan, shard: PlannedShard) -> ShardTask:
    return ShardTask(
        folder=str(request.folder.absolute()),
        plan=plan.digest,
        split=shard.split,
        shard=shard.shard,
        samples=tuple((index, listing.samples[index]) for index in shard.indices),
        crop=request.crop,
    )


def _damage(damaged: Sequence[DamagedSample], listing: Listing) -> InputError:
    """Return the error that names the damaged samples, in the order of the source."""
    order = {sample.name: number for number, sample in enumerate(listing.samples)}
    in_order = sorted(damaged, key=lambda sample: order[sample.name])
    names = "; ".join(f"{sample.name}: {sample.reason}" for sample in in_order[:_MAX_NAMED])
    others = f"; and {len(in_order) - _MAX_NAMED:,} others" if len(in_order) > _MAX_NAMED else ""
    return InputError(
        f"each sample must be readable, but {len(in_order):,} of {len(listing.samples):,} are not: {names}{others}",
        hint="replace the files and run the same command again: finished shards are kept",
    )


def _mean_bytes(samples: Sequence[SourceSample]) -> float:
    """Return the mean size of a sample; of some of them, as each size is a request."""
    tables = {sample.content.path for sample in samples if isinstance(sample.content, CellContent)}
    if tables:
        return sum(os.stat(table).st_size for table in tables) / len(samples)
    spacing = max(1, len(samples) // _NUM_MEASURED_SIZES)
    sizes = [size for sample in samples[::spacing] if (size := _num_bytes(sample)) is not None]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _num_bytes(sample: SourceSample) -> int | None:
    if isinstance(sample.content, LineContent):
        return sample.content.num_bytes
    if not isinstance(sample.content, FileContent):
        return None
    try:
        return os.stat(sample.content.path).st_size
    except OSError:
        return None


def _check_space(folder: Path, listing: Listing) -> None:
    """Raise OutputError if the disk has less space than the missing shards need."""
    heads = len(listing.samples) * _TAR_HEAD_BYTES
    total = (_mean_bytes(listing.samples) * len(listing.samples)) * (1 + _SPARE_SHARE) + heads
    done = sum(path.stat().st_size for path in folder.glob("*.tar"))
    free = shutil.disk_usage(folder).free
    if free < total - done:
        raise OutputError(
            f"the shards need about {num_bytes(total - done)} more, but the disk of `{folder}` has {num_bytes(free)}",
            hint="pass a folder on a larger disk",
        )


def _index(request: PackRequest, listing: Listing, plan: PackingPlan, records: Sequence[ShardRecord]) -> PackIndex:
    by_shard = {record.shard: record for record in records}
    splits = []
    for name, _ in request.splits:
        shards = tuple(
            PackedShard(
                shard=shard.shard,
                num_samples=len(shard.indices),
                num_bytes=by_shard[shard.shard].num_bytes,
                sha256=by_shard[shard.shard].sha256,
            )
            for shard in plan.shards
            if shard.split == name
        )
        splits.append(PackedSplit(name=name, num_samples=sum(shard.num_samples for shard in shards), shards=shards))
    samples = [sample for record in records for sample in record.samples]
    return PackIndex(
        plan=plan.digest,
        kind=listing.kind,
        source=str(request.source.absolute()),
        root=str(listing.root),
        num_samples=len(samples),
        num_bytes=sum(sample.num_bytes for sample in samples),
        classes=listing.classes,
        seed=request.seed,
        is_permuted=not request.keeps_order,
        holds_files=is_read_unchanged(listing),
        resized_for=request.crop,
        num_resized=sum(sample.is_resized for sample in samples),
        splits=tuple(splits),
    )


def _result(request: PackRequest, listing: Listing, plan: PackingPlan, gain: PackingGain) -> PackResult:
    counts = [len(shard.indices) for shard in plan.shards]
    first_split = request.splits[0][0]
    return PackResult(
        folder=str(request.folder),
        kind=listing.kind,
        num_samples=len(listing.samples),
        num_shards=len(plan.shards),
        least_samples=min(counts),
        most_samples=max(counts),
        num_ranks=request.num_ranks,
        num_workers=request.num_workers,
        is_class_sorted=plan.is_class_sorted,
        is_permuted=not request.keeps_order,
        gain=gain,
        is_written=False,
        splits=_split_sizes(plan),
        reading=reading_lines(request.folder, first_split, listing, plan),
        is_read_unchanged=is_read_unchanged(listing),
    )


def _split_sizes(plan: PackingPlan) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for shard in plan.shards:
        sizes[shard.split] = sizes.get(shard.split, 0) + len(shard.indices)
    return sizes


def _written(planned: PackResult, index: PackIndex, *, num_kept: int) -> PackResult:
    return msgspec.structs.replace(
        planned,
        is_written=True,
        num_kept_shards=num_kept,
        num_resized=index.num_resized,
        num_bytes=index.num_bytes,
    )
