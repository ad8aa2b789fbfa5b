"""Name the cause of a slowdown. In: what each rank did before it and since. Out: the cause and the ranks at fault.

All ranks of synchronous training slow down together, so a rank's step time names nobody. What names a rank is that it
waits least for the others, or that its own part of the step grew: its wait for batches, or the time at a lowered
clock. Whether a late rank is itself at fault, or kept waiting by other programs, is shown by its waits for a core, next
to those of its peers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Literal

import msgspec

from flatout.records.watch import Cause

# A part explains a slowdown if it grew by at least this share of it; a rank is at fault for a late exchange if its own
# wait grew by less than the other share.
EXPLAINS, WAITS_LITTLE = 0.5, 0.25
BUSY_CORES = 1.0  # cores of other programs that make a neighbour noisy
FULL_CORES = 0.5  # idle cores below which a program that becomes ready usually waits for one
SLOWER_READS = 1.5  # factor of the latency of reads from which storage is named for waits for batches
MORE_ERRORS = 2.0  # factor of the errors at ports from which links are named for longer exchanges
THROTTLED = {"hardware_slowdown", "software_thermal", "hardware_thermal", "power_brake"}


class RankParts(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank did per step, as a median over the steps of a time. None: unknown."""

    data_s: float | None = None  # wait for batches
    exposed_s: float | None = None  # exposed communication, in which it waits for late ranks
    behind_s: float | None = None  # how much later than its peers it comes to the exchange
    core_wait_s: float | None = None  # ready to run, but without a core
    throttle: tuple[str, ...] = ()
    is_stopped: bool = False


class JobParts(msgspec.Struct, frozen=True, kw_only=True):
    """What the job did per step in some time."""

    step_s: float
    ranks: Mapping[int, RankParts]
    other_cores: float | None = None  # cores of this host that are busy with other programs
    idle_cores: float | None = None  # of this host
    port_errors: float | None = None  # at all ports of this host in a block of steps
    read_latencies_s: Mapping[str, float] = {}  # by mount or disk of this host, in that block


class NamedCause(msgspec.Struct, frozen=True, kw_only=True):
    cause: Cause
    ranks: tuple[int, ...] = ()
    evidence: dict[str, float] = {}


def name_cause(before: JobParts, since: JobParts) -> NamedCause:
    """Return the first cause that explains the slowdown; `unknown` if none does."""
    if _growth_s(before, since) <= 0:
        return _stopped(before, since) or NamedCause(cause="unknown")
    rules: tuple[Callable[[JobParts, JobParts], NamedCause | None], ...] = (
        _stopped, _storage, _data_loading, _throttling, _late_rank, _link_errors, _communication, _noisy_neighbour,
        _computation,
    )  # fmt: skip
    for rule in rules:
        named = rule(before, since)
        if named is not None:
            return named
    return NamedCause(cause="unknown")


def _growth_s(before: JobParts, since: JobParts) -> float:
    return since.step_s - before.step_s


def _stopped(before: JobParts, since: JobParts) -> NamedCause | None:
    stopped = tuple(rank for rank, parts in since.ranks.items() if parts.is_stopped)
    return NamedCause(cause="stopped", ranks=stopped) if stopped else None


def _data_loading(before: JobParts, since: JobParts) -> NamedCause | None:
    growth = _growth_of_ranks("data_s", before, since)
    enough_s = EXPLAINS * _growth_s(before, since)
    slow = tuple(rank for rank, grown_s in (growth or {}).items() if grown_s >= enough_s)
    if not slow or growth is None:
        return None
    is_everybody = len(slow) == len(since.ranks)
    evidence = {"data_wait_growth_s": max(growth.values())}
    return NamedCause(cause="data_loading", ranks=() if is_everybody else slow, evidence=evidence)


def _storage(before: JobParts, since: JobParts) -> NamedCause | None:
    """Name storage where ranks wait longer for batches while reads of a mount or disk take longer."""
    waiting = _data_loading(before, since)
    if waiting is None:
        return None
    for name, now_s in since.read_latencies_s.items():
        earlier_s = before.read_latencies_s.get(name)
        if earlier_s is not None and now_s >= SLOWER_READS * earlier_s > 0:
            evidence = waiting.evidence | {"read_before_s": earlier_s, "read_since_s": now_s}
            return NamedCause(cause="storage", ranks=waiting.ranks, evidence=evidence)
    return None


def _throttling(before: JobParts, since: JobParts) -> NamedCause | None:
    throttled = []
    for rank, parts in since.ranks.items():
        earlier = before.ranks.get(rank)
        was_throttled = earlier is not None and bool(THROTTLED & set(earlier.throttle))
        if THROTTLED & set(parts.throttle) and not was_throttled:
            throttled.append(rank)
    return NamedCause(cause="throttling", ranks=tuple(throttled)) if throttled else None


def _growth_of_ranks(
    part: Literal["data_s", "exposed_s", "behind_s", "core_wait_s"], before: JobParts, since: JobParts
) -> dict[int, float] | None:
    """Return by how much this time of each rank grew; None if it is unknown for one of them."""
    growth = {}
    for rank, parts in since.ranks.items():
        earlier_s = getattr(before.ranks.get(rank), part, None)
        now_s = getattr(parts, part)
        if earlier_s is None or now_s is None:
            return None
        growth[rank] = now_s - earlier_s
    return growth


def _late_rank(before: JobParts, since: JobParts) -> NamedCause | None:
    """Name late ranks by the order in which ranks come, as it differs less by chance than their waits do."""
    is_order_known = _growth_of_ranks("behind_s", before, since) is not None
    find = _late_by_order if is_order_known else _late_by_waits
    late, evidence = find(before, since) or ((), {})
    if not late:
        return None
    beyond_s = _core_wait_beyond_others(late, before, since)
    if beyond_s is None:
        return NamedCause(cause="late_rank", ranks=late, evidence=evidence)
    is_kept_waiting = beyond_s >= EXPLAINS * min(evidence.values())
    evidence["core_wait_growth_beyond_others_s"] = beyond_s
    return NamedCause(cause="noisy_neighbour" if is_kept_waiting else "late_rank", ranks=late, evidence=evidence)


Late = tuple[tuple[int, ...], dict[str, float]]  # the late ranks, and the evidence: by how much they are late


def _late_by_waits(before: JobParts, since: JobParts) -> Late | None:
    """Return the ranks that wait for the others no longer than before while all others do."""
    growth = _growth_of_ranks("exposed_s", before, since)
    if growth is None or len(growth) < 2:
        return None
    slower_s = _growth_s(before, since)
    late = tuple(rank for rank, grown_s in growth.items() if grown_s < WAITS_LITTLE * slower_s)
    others = [grown_s for rank, grown_s in growth.items() if rank not in late]
    if not late or not others or min(others) < EXPLAINS * slower_s:
        return None
    return late, {"wait_growth_of_others_s": min(others)}


def _late_by_order(before: JobParts, since: JobParts) -> Late | None:
    """Return the ranks that come later to the exchange than before, next to the others, by enough of the slowdown."""
    growth = _growth_of_ranks("behind_s", before, since)
    if growth is None or len(growth) < 2:
        return None
    slower_s = _growth_s(before, since)
    late = tuple(rank for rank, grown_s in growth.items() if grown_s >= EXPLAINS * slower_s)
    others = [grown_s for rank, grown_s in growth.items() if rank not in late]
    if not late or not others or max(others) >= WAITS_LITTLE * slower_s:
        return None
    return late, {"later_than_others_s": min(growth[rank] for rank in late)}


def _core_wait_beyond_others(late: tuple[int, ...], before: JobParts, since: JobParts) -> float | None:
    """Return by how much more the late ranks' waits for a core grew than those of the others; None if unknown.

    On a busy host all ranks wait for cores: only what a late rank waits beyond its peers can be why it is late.
    """
    growth = _growth_of_ranks("core_wait_s", before, since)
    if growth is None:
        return None
    of_late = min(growth[rank] for rank in late)
    return of_late - median(grown_s for rank, grown_s in growth.items() if rank not in late)


def _communication(before: JobParts, since: JobParts) -> NamedCause | None:
    growth = _growth_of_ranks("exposed_s", before, since)
    if not growth or min(growth.values()) < EXPLAINS * _growth_s(before, since):
        return None
    return NamedCause(cause="communication", evidence={"exposed_growth_s": min(growth.values())})


def _link_errors(before: JobParts, since: JobParts) -> NamedCause | None:
    """Name links where exchanges take longer on all ranks while ports count more errors."""
    longer = _communication(before, since)
    if longer is None or before.port_errors is None or since.port_errors is None:
        return None
    if since.port_errors < max(MORE_ERRORS * before.port_errors, 1.0):
        return None
    return NamedCause(cause="link_errors", evidence=longer.evidence | {"port_errors": since.port_errors})


def _noisy_neighbour(before: JobParts, since: JobParts) -> NamedCause | None:
    """Name other programs: ranks wait longer for a core, or more cores are busy with them.

    On a host without an idle core, other programs take no more cores however many they are: only the waits grow.
    """
    growth = _growth_of_ranks("core_wait_s", before, since) or {}
    enough_s = EXPLAINS * _growth_s(before, since)
    waiting = tuple(rank for rank, grown_s in growth.items() if grown_s >= enough_s)
    if waiting:
        is_everybody = min(growth.values()) >= WAITS_LITTLE * _growth_s(before, since)
        evidence = {"core_wait_growth_s": max(growth.values())}
        return NamedCause(cause="noisy_neighbour", ranks=() if is_everybody else waiting, evidence=evidence)
    if before.other_cores is None or since.other_cores is None:
        return None
    more_cores = since.other_cores - before.other_cores
    if more_cores < BUSY_CORES:
        return None
    return NamedCause(cause="noisy_neighbour", evidence={"other_cores": since.other_cores})


def _computation(before: JobParts, since: JobParts) -> NamedCause | None:
    """Name the ranks' own work where no rank waits longer for batches, for the others or for a core.

    On an overloaded host other programs can slow down a core that a rank need not wait for.
    """
    if overloaded_host(since) is not None:
        return None
    enough_s = WAITS_LITTLE * _growth_s(before, since)
    waits = (
        _growth_of_ranks("data_s", before, since),
        _growth_of_ranks("core_wait_s", before, since),
        {} if len(since.ranks) == 1 else _growth_of_ranks("exposed_s", before, since),
    )
    grown_s = [grown_s for growth in waits if growth is not None for grown_s in growth.values()]
    if None in waits or max(grown_s) >= enough_s:
        return None
    return NamedCause(cause="computation", evidence={"longest_wait_growth_s": max(grown_s)})


def ranks_wait_for_cores(before: JobParts, since: JobParts) -> bool | None:
    """Return whether a rank waits longer for a core, by enough of the slowdown to matter; None if it is unknown."""
    growth = _growth_of_ranks("core_wait_s", before, since)
    if growth is None:
        return None
    return max(growth.values()) >= WAITS_LITTLE * _growth_s(before, since)


def overloaded_host(parts: JobParts) -> NamedCause | None:
    """Name other programs where they and the job leave this host no idle core; None if they do, or if it is unknown."""
    other_cores, idle_cores = parts.other_cores, parts.idle_cores
    if other_cores is None or idle_cores is None:
        return None
    if other_cores < BUSY_CORES or idle_cores >= FULL_CORES:
        return None
    return NamedCause(cause="noisy_neighbour", evidence={"other_cores": other_cores, "idle_cores": idle_cores})
