"""The loaders of a recorded job: their stages, what they could deliver, and why the training waits for them.

In: a recording made with the watch of `inside/loader_stages`. Out: a `LoadingProfile`.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import msgspec

from flatout.loading.causes import MIN_WAIT, find_causes, wait_share
from flatout.loading.rates import loading_rates
from flatout.loading.read_reports import LoaderReport, read_reports
from flatout.loading.speed import loader_speeds
from flatout.loading.stages import rank_loading
from flatout.records.loading import FoundCause, LoadingProfile, RankLoading
from flatout.records.recording import HostUse, Recording


def loading_profile(recording: Recording) -> LoadingProfile:
    """Return the profile of all ranks whose processes have timed batches."""
    reports, problems = read_reports(Path(recording.traces_path))
    by_rank: dict[int, list[LoaderReport]] = defaultdict(list)
    hosts: dict[int, str] = {}
    for hostname, report in reports:
        by_rank[report.rank].append(report)
        hosts[report.rank] = hostname
    use = {host.hostname: host for host in recording.hosts}
    recorded = {rank.rank: rank for rank in recording.ranks}
    loadings = []
    for rank, of_rank in sorted(by_rank.items()):
        num_sharing = _num_sharing(rank, by_rank, hosts)
        loading = rank_loading(rank, hosts[rank], of_rank, recorded.get(rank), ranks_on_host=num_sharing)
        if loading is not None:
            loading = _with_cores(loading, use.get(hosts[rank]))
            speeds, rates = loader_speeds(loading), loading_rates(loading)
            loadings.append(msgspec.structs.replace(loading, speeds=speeds, rates=rates))
    waits = {loading.rank: share for loading in loadings if (share := wait_share(loading)) is not None}
    slowest = max(waits, key=lambda rank: waits[rank], default=None)
    return LoadingProfile(
        recording=recording.path,
        ranks=tuple(loadings),
        slowest_rank=slowest,
        is_waiting=waits[slowest] >= MIN_WAIT if slowest is not None else None,
        causes=_causes(loadings, slowest),
        problems=tuple(problems),
    )


def _num_sharing(rank: int, by_rank: dict[int, list[LoaderReport]], hosts: dict[int, str]) -> int:
    """Return the number of ranks that run on the rank's cores: all of its host, or fewer if each has its own cores."""
    cores = {other: {core for report in reports for core in report.cores} for other, reports in by_rank.items()}
    on_host = [other for other in by_rank if hosts[other] == hosts[rank]]
    if not all(cores[other] for other in on_host):
        return len(on_host)
    return sum(bool(cores[other] & cores[rank]) for other in on_host)


def _with_cores(loading: RankLoading, host: HostUse | None) -> RankLoading:
    """Return the loader with what the affinity does not show: the quota, and others' use of the cores."""
    if host is None:
        return loading
    allowed = min(max(int(host.cores_allowed), 1), loading.cores_allowed)
    others = host.cores_busy_by_others
    if others is not None:  # a rank that is bound to some of the cores has its part of the load
        others *= min(allowed / host.cores_allowed, 1.0)
    return msgspec.structs.replace(loading, cores_allowed=allowed, cores_busy_by_others=others)


def _causes(loadings: list[RankLoading], slowest: int | None) -> tuple[FoundCause, ...]:
    return next((find_causes(loading) for loading in loadings if loading.rank == slowest), ())
