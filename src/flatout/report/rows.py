"""Rows of a report: one per rank or, with too many ranks to read, one per group of similar ranks and per outlier.

In: a `Diagnosis`. Out: rows with the parts of a mean step. Ranks are similar when no part of their step differs from
the group's centre by more than a tolerance, a share of the median step. The tolerance starts at 2 % and grows until
the rows fit. Ranks that a finding names are never grouped.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.diagnosis import DeviceDiagnosis, Diagnosis, RankDiagnosis
from flatout.report.parts import part_values

FIRST_TOLERANCE = 0.02  # of the median step: as large as the smallest finding
SMALLEST_GROUP = 3
MOST_NAMED_RANKS = 8  # the ranks of a finding that names more than this stay in their groups


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A rank or a group of similar ranks, with means over its ranks and their complete steps."""

    ranks: tuple[int, ...]
    shown: RankDiagnosis  # the rank, or the rank nearest to the group's centre
    duration_s: float  # of a mean step, or of the window if there are no steps
    parts_s: tuple[float, ...]  # in the order of PART_NAMES
    device: int | None = None  # the row is of one GPU of a rank that drives several

    @property
    def is_group(self) -> bool:
        return len(self.ranks) > 1

    @property
    def label(self) -> str:
        return self.short_label if self.is_group else f"rank {self.short_label}"

    @property
    def short_label(self) -> str:
        """Return the label for a column whose heading says `rank`."""
        if self.is_group:
            return f"{len(self.ranks):,} ranks"
        return f"{self.ranks[0]}" if self.device is None else f"{self.ranks[0]}, GPU {self.device}"


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    rows: tuple[Row, ...]
    tolerance: float | None  # share of the median step by which ranks of a group may differ; None: nothing is grouped

    @property
    def groups(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.is_group)

    def by_device(self) -> tuple[Row, ...]:
        """Return the rows with one for each GPU in place of the row of a rank that drives several."""
        rows: list[Row] = []
        for row in self.rows:
            devices = () if row.is_group else row.shown.devices
            rows += [_device_row(row, device) for device in devices] or [row]
        return tuple(rows)

    def mean_parts_s(self) -> tuple[float, ...]:
        """Return the mean seconds of each part over all ranks; a group counts once for each of its ranks."""
        sizes = [len(row.ranks) for row in self.rows]
        num_ranks = max(1, sum(sizes))
        columns = zip(*(row.parts_s for row in self.rows), strict=True)
        return tuple(sum(s * size for s, size in zip(column, sizes, strict=True)) / num_ranks for column in columns)


def _device_row(row: Row, device: DeviceDiagnosis) -> Row:
    return msgspec.structs.replace(row, parts_s=part_values(device.parts_s), device=device.device)


def mean_parts(rank: RankDiagnosis) -> tuple[float, ...]:
    """Return the seconds of each part in a mean step of the rank, or in its window if it has no steps."""
    if not rank.steps:
        return part_values(rank.parts_s)
    columns = zip(*(part_values(step.parts_s) for step in rank.steps), strict=True)
    return tuple(sum(column) / len(rank.steps) for column in columns)


def rank_rows(diagnosis: Diagnosis, *, most_ranks: int, most_rows: int) -> Rows:
    """Return one row per rank for up to `most_ranks` ranks; with more, about `most_rows` groups and outliers."""
    ranks = sorted(diagnosis.ranks, key=lambda rank: rank.rank)
    parts = [mean_parts(rank) for rank in ranks]
    if len(ranks) <= most_ranks:
        rows = tuple(_row((rank,), rank, (values,)) for rank, values in zip(ranks, parts, strict=True))
        return Rows(rows=rows, tolerance=None)
    values = np.array(parts)
    named_ranks: set[int] = set()
    for finding in diagnosis.findings:
        if len(finding.ranks) <= MOST_NAMED_RANKS:
            named_ranks.update(finding.ranks)
    is_named = np.array([rank.rank in named_ranks for rank in ranks])
    most_groups = max(1, most_rows - int(is_named.sum()))
    clusters, tolerance = _fitting_clusters(values, np.flatnonzero(~is_named), most_groups)

    groups = [cluster for cluster in clusters if len(cluster) >= SMALLEST_GROUP]
    small = [cluster for cluster in clusters if len(cluster) < SMALLEST_GROUP]
    outliers = np.concatenate([np.flatnonzero(is_named), *small])
    groups.sort(key=lambda cluster: (-len(cluster), int(cluster[0])))
    groups += [np.array([index]) for index in sorted(outliers.tolist())]
    rows = tuple(_group_row(ranks, parts, values, cluster) for cluster in groups)
    return Rows(rows=rows, tolerance=tolerance)


def _fitting_clusters(
    values: NDArray[np.float64], indices: NDArray[np.intp], most_groups: int
) -> tuple[list[NDArray[np.intp]], float]:
    scale_s = float(np.median(values.sum(axis=1))) or 1.0
    tolerance = FIRST_TOLERANCE
    while True:
        clusters = _clusters(values, indices, tolerance * scale_s, most_groups)
        if clusters is not None:
            return clusters, tolerance
        tolerance *= 1.5


def _clusters(
    values: NDArray[np.float64], indices: NDArray[np.intp], tolerance_s: float, most_groups: int
) -> list[NDArray[np.intp]] | None:
    """Cluster the ranks within the tolerance of a centre, group by group. None if there are too many rows."""
    clusters: list[NDArray[np.intp]] = []
    num_rows = 0
    while len(indices):
        remaining = values[indices]
        distance = np.abs(remaining - np.median(remaining, axis=0)).max(axis=1)
        if not (distance <= tolerance_s).any():  # the median is between the groups, so take the rank nearest to it
            distance = np.abs(remaining - remaining[int(distance.argmin())]).max(axis=1)
        is_near = distance <= tolerance_s
        clusters.append(indices[is_near])
        num_rows += 1 if len(clusters[-1]) >= SMALLEST_GROUP else len(clusters[-1])
        if num_rows > most_groups:
            return None
        indices = indices[~is_near]
    return clusters


def _group_row(
    ranks: Sequence[RankDiagnosis],
    parts: Sequence[tuple[float, ...]],
    values: NDArray[np.float64],
    cluster: NDArray[np.intp],
) -> Row:
    chosen = values[cluster]
    nearest = int(np.abs(chosen - chosen.mean(axis=0)).max(axis=1).argmin())
    members = tuple(ranks[index] for index in cluster)
    return _row(members, members[nearest], tuple(parts[index] for index in cluster))


def _row(ranks: tuple[RankDiagnosis, ...], shown: RankDiagnosis, parts: tuple[tuple[float, ...], ...]) -> Row:
    mean = tuple(sum(column) / len(parts) for column in zip(*parts, strict=True))
    return Row(ranks=tuple(rank.rank for rank in ranks), shown=shown, duration_s=sum(mean), parts_s=mean)
