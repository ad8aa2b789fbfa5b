"""Assign each trace to its rank.

In: the metadata of the files, and their names. Out: one rank per file, or None for a copy of another file. The sources,
in order of trust: the user, `distributedInfo.rank`, the file name, the order of the files (noted as a guess).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from flatout.errors import InputError
from flatout.records.events import Quality, TraceMeta
from flatout.units import NS_PER_S, seconds

# rank-3, rank3_, rank_3, worker3_step, Rank 3
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])(?:rank|worker)[-_. ]?(\d{1,18})(?!\d)", re.IGNORECASE)
# trace_3.json: such a number is used only if it distinguishes all files of a job
_NUMBER_AT_END = re.compile(r"(?:^|\D)(\d{1,18})(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$", re.IGNORECASE)
_MAX_RANK = 1 << 20
_SESSION_HINT = "diagnose one session at a time: pass only its traces"
_HINT = "pass one recording per rank, or assign ranks with --rank FILE=N"


class RankAssignment(msgspec.Struct, frozen=True, kw_only=True):
    ranks: tuple[int | None, ...]  # in the order of the files; None: a copy of another file, to be excluded
    quality: tuple[Quality, ...] = ()


def rank_in_name(name: str) -> int | None:
    """Return the rank in the file name, else in the folder name; None if there is none."""
    for part in re.split(r"[/\\]", name)[:-3:-1]:
        match = _RANK_IN_NAME.search(part)
        if match is not None and int(match[1]) < _MAX_RANK:
            return int(match[1])
    return None


def assign_ranks(metas: Sequence[TraceMeta], *, given: Mapping[str, int] | None = None) -> RankAssignment:
    """Decide the rank of each file. `given` maps a file, by path or name, to the rank that the user assigned.

    Raises InputError if two different files claim the same rank and nothing distinguishes them.
    """
    assigned = given or {}
    _refuse_unknown_names(metas, assigned)
    quality: list[Quality] = []
    ranks: list[int | None] = [_stated_rank(meta, assigned) for meta in metas]
    copies = _copies(metas, ranks, quality)
    originals = [index for index in range(len(metas)) if index not in copies]
    claimed = [rank for rank in (ranks[index] for index in originals) if rank is not None]
    if len(set(claimed)) < len(claimed):
        _use_names(metas, ranks, originals, assigned, quality)
    without_rank = [index for index in originals if ranks[index] is None]
    if without_rank:
        _refuse_sessions([metas[index] for index in without_rank])
        _guess(metas, ranks, without_rank, quality)
    _refuse_two_of_a_rank(metas, ranks, originals)
    for copy in copies:
        ranks[copy] = None
    return RankAssignment(ranks=tuple(ranks), quality=tuple(quality))


def _refuse_unknown_names(metas: Sequence[TraceMeta], assigned: Mapping[str, int]) -> None:
    """Raise InputError if the user assigned a rank to a file that is not among the traces."""
    names = {name for meta in metas for name in (meta.path, _last_part(meta.path))}
    for name in assigned:
        if name not in names:
            raise InputError(
                f"there is no trace named {name}", hint=f"the traces are {', '.join(m.path for m in metas[:8])}"
            )


def _refuse_two_of_a_rank(metas: Sequence[TraceMeta], ranks: Sequence[int | None], indices: Sequence[int]) -> None:
    """Raise InputError if two of the files at the indices have the same rank."""
    by_rank: dict[int, TraceMeta] = {}
    for index in indices:
        rank = ranks[index]
        assert rank is not None
        first = by_rank.setdefault(rank, metas[index])
        if first is not metas[index]:
            raise _two_of_a_rank(first, metas[index], rank)


def _two_of_a_rank(first: TraceMeta, second: TraceMeta, rank: int) -> InputError:
    problem = f"each rank must have one trace, but {first.path} and {second.path} both say rank {rank}"
    pause_s = _pause_s(first, second)
    if pause_s is None:
        return InputError(problem, hint=_HINT)
    return InputError(f"{problem}: they are two sessions, {seconds(pause_s)} apart", hint=_SESSION_HINT)


def _refuse_sessions(metas: Sequence[TraceMeta]) -> None:
    """Raise InputError if files without a rank were recorded one after the other: ranks are recorded together."""
    in_time = sorted((meta for meta in metas if meta.start_ns is not None), key=lambda meta: meta.start_ns or 0)
    for first, second in pairwise(in_time):
        pause_s = _pause_s(first, second)
        if pause_s is not None:
            raise InputError(
                f"traces of one job must be recorded at the same time, but {second.path} begins {seconds(pause_s)}"
                f" after the end of {first.path}, and neither says its rank: they are two sessions",
                hint=f"{_SESSION_HINT}; if they are two ranks, say so: --rank FILE=N",
            )


def _pause_s(meta: TraceMeta, other: TraceMeta) -> float | None:
    """Return the time between the two recordings; None if they overlap, or if their times are unknown."""
    if meta.start_ns is None or meta.end_ns is None or other.start_ns is None or other.end_ns is None:
        return None
    pause_ns = max(meta.start_ns, other.start_ns) - min(meta.end_ns, other.end_ns)
    return pause_ns / NS_PER_S if pause_ns >= 0 else None


def _stated_rank(meta: TraceMeta, given: Mapping[str, int]) -> int | None:
    told = given.get(meta.path, given.get(_last_part(meta.path)))
    if told is not None:
        return told
    return meta.rank if meta.rank is not None else rank_in_name(meta.path)


def _copies(metas: Sequence[TraceMeta], ranks: list[int | None], quality: list[Quality]) -> set[int]:
    """Return the files with the same content as an earlier file of the same rank."""
    seen: dict[tuple[int | None, str], int] = {}
    copies = set()
    for index, meta in enumerate(metas):
        if meta.fingerprint is None:
            continue
        first = seen.setdefault((ranks[index], meta.fingerprint), index)
        if first != index:
            copies.add(index)
            quality.append(
                Quality(
                    problem=f"{meta.path} has the same events as {metas[first].path}",
                    effect="it was recognised as a copy and excluded",
                    rank=ranks[index],
                )
            )
    return copies


def _use_names(
    metas: Sequence[TraceMeta],
    ranks: list[int | None],
    files: list[int],
    given: Mapping[str, int],
    quality: list[Quality],
) -> None:
    """Take the ranks of contradictory files from their names, if these distinguish all of the files."""
    named = [given.get(metas[i].path, given.get(_last_part(metas[i].path), rank_in_name(metas[i].path))) for i in files]
    if None in named or len(set(named)) < len(named):
        return
    for index, rank in zip(files, named, strict=True):
        ranks[index] = rank
    quality.append(
        Quality(
            problem="several traces state the same rank inside, but their file names differ",
            effect="ranks are taken from the file names",
        )
    )


def _guess(metas: Sequence[TraceMeta], ranks: list[int | None], missing: list[int], quality: list[Quality]) -> None:
    """Guess the ranks of files that state none: from the numbers that end their names, else in order."""
    world_size = max((meta.world_size or 0 for meta in metas), default=0)
    taken = {rank for rank in ranks if rank is not None}
    limit = world_size or max(len(metas) * 64, 4096)
    guessed = _numbers_at_ends([metas[index].path for index in missing], taken, limit)
    how = "from the number at the end of the file name"
    if guessed is None:
        guessed = sorted(set(range(len(metas) + len(taken))) - taken)
        how = "in the order of the files"
    for index, rank in zip(missing, guessed, strict=False):
        ranks[index] = rank
    if len(metas) == 1 and world_size <= 1:
        return
    quality.append(
        Quality(
            problem=f"{_files(len(missing))} not say which rank wrote {'it' if len(missing) == 1 else 'them'}",
            effect=f"ranks are guessed, {how}; assign them with --rank FILE=N",
        )
    )


def _numbers_at_ends(paths: Sequence[str], taken: set[int], limit: int) -> list[int] | None:
    """Return the numbers that end the names; None if they cannot be ranks: one is missing, double, taken or too large.

    A single number says nothing: it may be a date or a process.
    """
    numbers = [number for path in paths if (number := _number_at_end(path)) is not None and number < limit]
    is_complete = len(numbers) == len(paths) > 1
    if not is_complete or len(set(numbers)) < len(numbers) or not taken.isdisjoint(numbers):
        return None
    return numbers


def _files(count: int) -> str:
    return "1 trace does" if count == 1 else f"{count:,} traces do"


def _number_at_end(path: str) -> int | None:
    match = _NUMBER_AT_END.search(_last_part(path))
    return int(match[1]) if match is not None else None


def _last_part(path: str) -> str:
    return re.split(r"[/\\]", path)[-1]
