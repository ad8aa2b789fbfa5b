"""Word the exposed communication by process group, for the text and the page.

In: a diagnosis. Out: the lines that are worth showing, none if one kind of group on unknown hosts has all of it.
"""

from __future__ import annotations

from typing import NamedTuple

from flatout import units
from flatout.records.diagnosis import Diagnosis, GroupCommunication, GroupPurpose, GroupSpan

SMALLEST_SHARE = 0.005  # of the step
TITLE = "Communication that compute does not hide, by process group"
HEADER = ("groups are for", "where", "groups", "time", "share", "of it: transfer", "wait")
_PURPOSES = {
    GroupPurpose.DATA: "data parallelism (DP)",
    GroupPurpose.TENSOR: "tensor parallelism (TP)",
    GroupPurpose.CONTEXT: "context parallelism (CP)",
    GroupPurpose.PIPELINE: "pipeline (PP)",
    GroupPurpose.EXPERT: "expert parallelism (EP)",
    GroupPurpose.OTHER: "other",
    GroupPurpose.UNKNOWN: "not recorded",
}
_SPANS = {
    GroupSpan.WITHIN_NODE: "within nodes",
    GroupSpan.BETWEEN_NODES: "between nodes",
    GroupSpan.UNKNOWN: "hosts unknown",
}


class GroupLine(NamedTuple):
    """One row, in the order of `HEADER`."""

    purpose: str
    span: str
    groups: str
    time: str
    share: str
    transfer: str
    wait: str


def group_lines(diagnosis: Diagnosis) -> list[GroupLine]:
    """Return the rows to show, the longest first."""
    step_s = _step_s(diagnosis)
    if step_s <= 0:
        return []
    shown = [each for each in diagnosis.communication if each.exposed_s >= SMALLEST_SHARE * step_s]
    is_informative = len(shown) > 1 or any(each.span is GroupSpan.BETWEEN_NODES for each in shown)
    return [_line(each, step_s) for each in shown] if is_informative else []


def _step_s(diagnosis: Diagnosis) -> float:
    if diagnosis.job.step_s is not None:
        return diagnosis.job.step_s
    windows = [rank.window_s for rank in diagnosis.ranks]
    return sum(windows) / len(windows) if windows else 0.0


def _line(each: GroupCommunication, step_s: float) -> GroupLine:
    size = "?" if each.group_size is None else f"{each.group_size:,}"
    is_unsplit = each.unsplit_s > 0.5 * each.exposed_s
    return GroupLine(
        purpose=_PURPOSES[each.purpose],
        span="" if each.purpose is GroupPurpose.UNKNOWN else _SPANS[each.span],
        groups=f"{each.num_groups:,} x {size}" if each.num_groups else "",
        time=units.seconds(each.exposed_s),
        share=units.percent(each.exposed_s / step_s),
        transfer="unknown" if is_unsplit else units.seconds(each.transfer_s),
        wait="unknown" if is_unsplit else units.seconds(each.wait_s + each.bubble_s),
    )
