"""Join the columns of all blocks into one checked event table.

In: columns in file order with the dictionaries that their ids refer to, and the file's metadata. Out: an `EventTable`
sorted by time, with names in order of first use, final kinds, and repaired durations. The result does not depend on how
the file was split into blocks, or on which process decoded each block.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.read.decoded import Columns, Decoded
from flatout.read.durations import repair_durations
from flatout.read.metadata import FileMetadata
from flatout.read.processes import RankPart, host_in_name, process_of
from flatout.read.quality import damage_quality, duration_quality
from flatout.read.schema import MTIA_DEVICE, OPERATOR, is_kind
from flatout.records.events import COLUMNS, GPU_WORK, NULL, CollectiveArgs, EventTable, Kind, Quality, TraceMeta
from flatout.units import NS_PER_S

_ANNOTATION = re.compile(
    r"ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(?:step|zero_grad)#|DistributedDataParallel\.forward"
    r"|nccl:|gloo:|FSDP::"
)
_STEP_MARK = re.compile(r"ProfilerStep#\d+")
NO_NAME = "(no name)"
_MOST_DIGITS = 20  # of a stream or a process in its name; Python converts at most 4,300
_DAY_NS = 24 * 3600 * NS_PER_S
_DICTIONARY_OF_COLUMN = {
    "name": "names",
    "thread": "threads",
    "shape": "shapes",
    "collective": "collectives",
}


def build_table(
    decoded: Decoded, metadata: FileMetadata, path: str, quality: Sequence[Quality], part: RankPart | None = None
) -> EventTable:
    """Build the table of a file, or of one of the ranks in it."""
    columns, dictionaries = _join(decoded)
    if part is not None:
        columns = _of_part(columns, dictionaries["threads"], part)
    num_clamped = _leave_out_clamped(columns)
    base_ns = _usable_base(columns["start_ns"], metadata.base_ns)
    columns["start_ns"] += base_ns
    _settle_kinds(columns, dictionaries["names"])
    _settle_devices(columns, dictionaries["threads"])
    order = _time_order(columns["start_ns"], columns["duration_ns"])
    for column in COLUMNS:
        columns[column] = columns[column][order]
    repairs = repair_durations(columns, _is_step_mark(columns, dictionaries["names"]))
    if repairs.any:
        order = _time_order(columns["start_ns"], columns["duration_ns"])
        columns = {column: values[order] for column, values in columns.items()}
    for column, field in _DICTIONARY_OF_COLUMN.items():
        columns[column], dictionaries[field] = _by_first_use(columns[column], dictionaries[field])
    damage = decoded.damage
    damage["no time"] += num_clamped
    damage["no name"] += sum(
        int((columns["name"] == c).sum()) for c, name in enumerate(dictionaries["names"]) if not name
    )
    return EventTable(
        meta=_meta(metadata, path, base_ns, columns, process_of(columns, dictionaries["threads"], path)),
        names=tuple(name or NO_NAME for name in dictionaries["names"]),
        threads=tuple((str(pid), str(tid)) for pid, tid in dictionaries["threads"]),
        shapes=tuple(_compact(text) for text in dictionaries["shapes"]),
        collectives=tuple(_with_ranks(each, metadata.group_ranks) for each in dictionaries["collectives"]),
        quality=(
            *quality,
            *metadata.quality,
            *damage_quality(damage, decoded.unknown_categories, decoded.dropped),
            *duration_quality(repairs),
        ),
        dropped=tuple(sorted((what, count) for what, count in decoded.dropped.items() if count)),
        **columns,
    )


def _join(decoded: Decoded) -> tuple[Columns, dict[str, list[Any]]]:
    """Return one array per column and one dictionary. The pieces release theirs, so the file is in memory only once."""
    columns: Columns = {}
    dictionaries: dict[str, list[Any]] = {}
    for column, dtype in COLUMNS.items():
        parts = [piece.pop(column) for piece in decoded.pieces]
        field = _DICTIONARY_OF_COLUMN.get(column)
        if field is not None:
            dictionaries[field], maps = _merge([getattr(decoder, field) for decoder in decoded.decoders])
            if maps is not None:
                parts = [maps[decoder][part] for decoder, part in zip(decoded.decoder_of_piece, parts, strict=True)]
        columns[column] = np.concatenate(parts) if parts else np.empty(0, dtype)
    return columns, dictionaries


def _of_part(columns: Columns, threads: Sequence[tuple[int | str, int | str]], part: RankPart) -> Columns:
    """Return the events of one rank."""
    is_of_thread = np.array([*(part.has(process) for process, _ in threads), False], np.bool_)  # NULL is -1
    is_of_part = is_of_thread[columns["thread"]]
    return {column: values[is_of_part] for column, values in columns.items()}


def _merge(dictionaries: list[list[Any]]) -> tuple[list[Any], list[NDArray[np.int32]] | None]:
    """Merge several dictionaries into one, and return the new codes for the old codes of each; None if they stay."""
    if len(dictionaries) == 1 and len(set(dictionaries[0])) == len(dictionaries[0]):
        return list(dictionaries[0]), None
    merged: dict[Any, int] = {}
    maps = []
    for keys in dictionaries:
        codes = [merged.setdefault(key, len(merged)) for key in keys]
        maps.append(np.array([*codes, NULL], np.int32))  # NULL is -1, the last entry
    return list(merged), maps


def _leave_out_clamped(columns: Columns) -> int:
    """Drop events at time 0 if all others are days later, and return their number.

    Profilers write 0 if a driver reported no time, or a time before the base; it would extend the trace by months.
    """
    start_ns = columns["start_ns"]
    is_clamped = start_ns == 0
    if not is_clamped.any() or start_ns.min() < 0 or start_ns[~is_clamped].min(initial=1 << 62) < _DAY_NS:
        return 0
    if is_clamped.all():
        return 0
    for column, values in columns.items():
        columns[column] = values[~is_clamped]
    return int(is_clamped.sum())


def _usable_base(start_ns: NDArray[np.int64], base_ns: int) -> int:
    """Return the base time, or 0 if the file has both a base and times since 1970, so that their sum would not fit."""
    latest_ns = int(start_ns.max()) if len(start_ns) else 0
    return base_ns if base_ns >= 0 and latest_ns + base_ns < 1 << 62 else 0


def _settle_kinds(columns: dict[str, NDArray[Any]], names: list[str]) -> None:
    """Decide the kind by name for categories that stand for two kinds."""
    kind = columns["kind"]
    is_operator, is_mtia = kind == OPERATOR, kind == MTIA_DEVICE
    if not is_operator.any() and not is_mtia.any():
        return
    annotation = np.fromiter([_ANNOTATION.match(name) is not None for name in names], np.bool_, len(names))
    kind[is_operator] = Kind.CPU_OP
    if annotation.any():
        kind[is_operator & annotation[columns["name"]]] = Kind.USER_ANNOTATION
    if is_mtia.any():
        kind[is_mtia] = Kind.KERNEL
        annotation[columns["name"][kind == Kind.USER_ANNOTATION]] = True
        kind[is_mtia & annotation[columns["name"]]] = Kind.GPU_ANNOTATION


def _is_step_mark(columns: Columns, names: list[str]) -> NDArray[np.bool_]:
    of_name = np.fromiter([_STEP_MARK.fullmatch(name) is not None for name in names], np.bool_, len(names))
    marked: NDArray[np.bool_] = of_name[columns["name"]] & is_kind(columns["kind"], Kind.USER_ANNOTATION)
    return marked


def _settle_devices(columns: dict[str, NDArray[Any]], threads: list[tuple[int | str, int | str]]) -> None:
    """Take device and stream from the event's pid and tid if its args lack them."""
    on_device = is_kind(columns["kind"], *GPU_WORK, Kind.GPU_ANNOTATION, Kind.SYNC)
    for column, position in (("device", 0), ("stream", 1)):
        of_thread = np.array([*(_number(thread[position]) for thread in threads), NULL], np.int64)
        values = columns[column]
        absent = np.flatnonzero(on_device & (values == NULL))
        values[absent] = of_thread[columns["thread"][absent]]
    columns["num_bytes"][~is_kind(columns["kind"], Kind.MEMCPY, Kind.MEMSET)] = NULL
    has_own_id = is_kind(columns["kind"], Kind.CPU_OP, Kind.USER_ANNOTATION)
    columns["external_id"][(columns["external_id"] == 0) & ~has_own_id] = NULL  # written for "none" in 2021


def _number(name: int | str) -> int:
    """Return the number in a name: 7 for 7, "7" and "stream 7"."""
    if isinstance(name, str):
        digits = re.search(r"\d+$", name)
        if digits is None or len(digits[0]) > _MOST_DIGITS:
            return NULL
        name = int(digits[0])
    return name if abs(name) < 1 << 31 else NULL


def _time_order(start_ns: NDArray[np.int64], duration_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the stable order by (start, -duration). Few starts are equal, so one sort does nearly all the work."""
    order = np.argsort(start_ns, kind="stable")
    ordered = start_ns[order]
    is_tied = ordered[1:] == ordered[:-1]
    if is_tied.any():
        members = np.flatnonzero(np.append(is_tied, False) | np.append(False, is_tied))
        rows = order[members]
        order[members] = rows[np.lexsort((-duration_ns[rows], start_ns[rows]))]
    return order


def _by_first_use(codes: NDArray[np.int32], keys: list[Any]) -> tuple[NDArray[np.int32], list[Any]]:
    """Number the dictionary in order of first use, and drop unused keys."""
    if not keys:
        return codes, keys
    first = np.full(len(keys) + 1, len(codes), np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    first[NULL] = len(codes)
    order = np.argsort(first[:-1], kind="stable")
    used = order[first[order] < len(codes)]
    new_code = np.full(len(keys) + 1, NULL, np.int32)
    new_code[used] = np.arange(len(used), dtype=np.int32)
    return new_code[codes], [keys[code] for code in used.tolist()]


def _with_ranks(collective: CollectiveArgs, group_ranks: Mapping[str, tuple[int, ...]]) -> CollectiveArgs:
    """Add the group's ranks from the metadata if the event's are truncated, as PyTorch does above 30 ranks."""
    ranks = group_ranks.get(collective.group_name or "")
    if collective.group_ranks is not None or ranks is None or len(ranks) != collective.group_size:
        return collective
    return msgspec.structs.replace(collective, group_ranks=ranks)


def _compact(text: bytes) -> str:
    return msgspec.json.format(text, indent=-1).decode("utf-8", errors="replace")


def _meta(
    metadata: FileMetadata, path: str, base_ns: int, columns: dict[str, NDArray[Any]], process: str | None
) -> TraceMeta:
    device_of_work = columns["device"][is_kind(columns["kind"], *GPU_WORK)]
    devices, counts = np.unique(device_of_work[device_of_work != NULL], return_counts=True)
    device = int(devices[counts.argmax()]) if devices.size else None
    has_events = len(columns["start_ns"]) > 0
    return TraceMeta(
        path=path,
        rank=metadata.rank,
        world_size=metadata.world_size,
        backend=metadata.backend,
        device_name=None if device is None else metadata.device_names.get(device),
        device=device,
        num_devices=len(metadata.device_names),
        base_ns=base_ns,
        hostname=metadata.hostname or host_in_name(path, process),
        process=process,
        start_ns=int(columns["start_ns"][0]) if has_events else None,
        end_ns=int((columns["start_ns"] + columns["duration_ns"]).max()) if has_events else None,
        fingerprint=f"{len(columns['start_ns'])}-{_checksum(columns['start_ns'])}-{_checksum(columns['duration_ns'])}",
    )


def _checksum(values: NDArray[Any]) -> str:
    return f"{zlib.crc32(values.data):08x}"
