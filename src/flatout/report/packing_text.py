"""Print what packing will bring, what was packed, and how to read it."""

from __future__ import annotations

import shlex

from flatout.records.packing import PackCheck, PackingGain, PackResult
from flatout.report.terminal import TextStyle
from flatout.units import num_bytes, seconds

_MAX_NAMED = 10


def planned_text(result: PackResult, style: TextStyle) -> str:
    """Return what packing will bring and which shards it will write, before anything is written."""
    lines = style.wrapped(gain_sentence(result.gain))
    lines += style.wrapped(_shards_sentence(result))
    if result.is_class_sorted:
        order = "the shards have them in a random order" if result.is_permuted else "and so do the shards"
        lines += style.wrapped(f"The source has its samples sorted by class; {order}.")
    if result.is_class_sorted and not result.is_permuted:
        lines += style.wrapped(
            "Note: a reader that streams the shards sees one class at a time, and a shuffle buffer does not prevent"
            " that: omit --keep-order."
        )
    return "\n".join(lines)


def gain_sentence(gain: PackingGain) -> str:
    """Say what packing will bring for the training's speed."""
    times = gain.times
    cost = ""
    if times is not None:
        cost = (
            f" (of {times.num_files:,} files: {seconds(times.open_s)} to open one, {seconds(times.read_s)} to read"
            f" {num_bytes(times.mean_bytes)})"
        )
    match gain.cause:
        case "local":
            return f"Packing brings nothing here: the files are on a local disk, {gain.file_system}{cost}."
        case "few-metadata":
            return f"Packing brings little here: reading the files' content takes most of the time{cost}."
        case "metadata":
            assert gain.factor is not None
            return (
                f"Packing can make reading up to {gain.factor:.1f}x faster: on {gain.file_system}, opening a file takes"
                f" longer than it should{cost}. The training gains only where it waits for reading."
            )
        case "one-file":
            return "Packing saves no requests for metadata: the samples are already in one file."
        case _:
            return f"What packing will bring is unknown: the kind of file system is unknown{cost}."


def packed_text(result: PackResult, style: TextStyle) -> str:
    """Return what was written, and how to read it."""
    kept = f"; {result.num_kept_shards:,} of the shards were already there" if result.num_kept_shards else ""
    lines = style.wrapped(
        f"Packed {result.num_samples:,} samples, {num_bytes(result.num_bytes)}, into {result.num_shards:,} shards in"
        f" {result.folder}, and verified each sample{kept}."
    )
    if result.num_resized:
        lines += style.wrapped(
            f"{result.num_resized:,} images were at least twice the crop and were made smaller (rounding: the training"
            " sees other pixels)."
        )
    if len(result.splits) > 1:
        sizes = ", ".join(f"{name} {size:,}" for name, size in result.splits.items())
        lines += style.wrapped(f"Splits: {sizes}.")
    if result.is_read_unchanged:
        lines += style.wrapped("A script that opens the files by their paths reads the pack unchanged:")
        lines.append(f"  flatout run --packed {shlex.quote(result.folder)} -- COMMAND")
        lines += style.wrapped("Any other script reads it with:")
    else:
        lines += style.wrapped("A script reads it with:")
    lines += [f"  {line}" for line in result.reading]
    return "\n".join(lines)


def check_text(check: PackCheck, style: TextStyle) -> str:
    """Return whether all samples of a pack are as they were packed, and whether its shards suffice."""
    if check.damaged:
        lines = style.wrapped(f"{len(check.damaged):,} damaged in {check.folder}:")
        for sample in check.damaged[:_MAX_NAMED]:
            lines += style.wrapped(f"{sample.name}: {sample.reason}", indent="  ")
        if len(check.damaged) > _MAX_NAMED:
            lines.append(f"  and {len(check.damaged) - _MAX_NAMED:,} others")
    else:
        lines = style.wrapped(
            f"All {check.num_samples:,} samples in {check.num_shards:,} shards of {check.folder} are as they were"
            " packed."
        )
    if check.most_samples - check.least_samples > 1:
        lines += style.wrapped(
            f"The shards are uneven: they have {check.least_samples:,} to {check.most_samples:,} samples, so some ranks"
            " have more batches than others."
        )
    if check.needed_shards is not None and check.least_shards < check.needed_shards:
        lines += style.wrapped(
            f"There are {check.least_shards:,} shards, but four per worker of each rank would be"
            f" {check.needed_shards:,}. Pack again with --ranks and --workers."
        )
    return "\n".join(lines)


def _shards_sentence(result: PackResult) -> str:
    counts = f"{result.most_samples:,}"
    if result.least_samples != result.most_samples:
        counts = f"{result.least_samples:,} or {result.most_samples:,}"
    per_worker = result.num_shards / (result.num_ranks * result.num_workers * max(1, len(result.splits)))
    share = f", at least {int(per_worker)} for each worker of each rank" if len(result.splits) == 1 else ""
    return (
        f"{result.num_samples:,} samples in {result.num_shards:,} shards of {counts} samples, for"
        f" {result.num_ranks:,} ranks with {result.num_workers:,} workers{share}."
    )
