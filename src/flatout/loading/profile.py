"""The loaders of a recorded job: their stages, what they could deliver, and why the training waits for them.

In: a recording made with the watch of `inside/loader_stages`. Out: a `LoadingProfile`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import msgspec

from flatout.loading.causes import MIN_WAIT, find_causes, wait_share
from flatout.loading.read_reports import LoaderReport, read_reports
from flatout.loading.speed import loader_speeds
from flatout.loading.stages import rank_loading
from flatout.records.loading import FoundCause, LoadingProfile, RankLoading
from flatout.records.recording import Recording


def loading_profile(recording: Recording) -> LoadingProfile:
    """Return the profile of all ranks whose processes have timed batches."""
    reports, problems = read_reports(Path(recording.traces_path))
    by_rank: dict[int, list[LoaderReport]] = defaultdict(list)
    hosts: dict[int, str] = {}
    for hostname, report in reports:
        by_rank[report.rank].append(report)
        hosts[report.rank] = hostname
    ranks_on = Counter(hosts.values())
    recorded = {rank.rank: rank for rank in recording.ranks}
    loadings = []
    for rank, of_rank in sorted(by_rank.items()):
        loading = rank_loading(rank, hosts[rank], of_rank, recorded.get(rank), ranks_on_host=ranks_on[hosts[rank]])
        if loading is not None:
            loadings.append(msgspec.structs.replace(loading, speeds=loader_speeds(loading)))
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


def _causes(loadings: list[RankLoading], slowest: int | None) -> tuple[FoundCause, ...]:
    return next((find_causes(loading) for loading in loadings if loading.rank == slowest), ())
