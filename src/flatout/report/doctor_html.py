"""Write a DoctorReport as one self-contained HTML file: problems, a drawing of the topology, every check by family.

No script, no external reference; texts from the machine are untrusted, and the template escapes all of them. The
drawing consists of nested boxes, each device inside the ports and switches above it, so that it fits any width.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flatout import __version__
from flatout.records.doctor import FAMILIES, STATUSES, CheckResult, DoctorReport, Status, Topology, TopologyNode
from flatout.report.command import command_line
from flatout.report.doctor_gain import gain_sentence
from flatout.report.phrases import counted
from flatout.report.template import rendered
from flatout.report.topology import has_missing_lanes, nodes_below, own_name, paired_devices, relations

FAMILY_NAMES = {"gpu": "GPUs", "software": "Software", "host": "Host", "network": "Network", "storage": "Storage"}
DEVICES = ("gpu", "nic", "nvswitch", "storage")
BAD: tuple[Status, ...] = ("fail", "warn")
_VERBS = {"fail": ("fails", "fail"), "warn": ("warns", "warn")}
MOST_BOXES = 600
MOST_IN_MATRIX = 32
MOST_DEPTH = 24  # a damaged source can describe a loop
_KIND_NAMES = {"gpu": "GPU", "nic": "NIC"}
# From near to far, as `nvidia-smi topo -m` explains them.
RELATIONS = {
    "NV": "NVLink, or AMD's XGMI",
    "PIX": "at most one PCIe bridge",
    "PXB": "several PCIe bridges, but not the CPU's",
    "PHB": "a PCIe host bridge, such as the CPU's",
    "NODE": "several PCIe host bridges in one NUMA node",
    "SYS": "the link between NUMA nodes",
}


def doctor_html(report: DoctorReport, command: Sequence[str]) -> str:
    return rendered("doctor.html.j2", page_content(report, command))


def page_content(report: DoctorReport, command: Sequence[str]) -> dict[str, object]:
    """Return what the template shows, as texts and numbers ready to print."""
    counts = Counter(check.status for check in report.checks)
    facts = [report.host or "a host without a name", f"read from {', '.join(report.read_from) or 'nothing'}"]
    if report.taken_at:
        facts.append(report.taken_at)
    facts.append(counted(len(report.checks), "check"))
    return {
        "tool_version": __version__,
        "command": command_line(command),
        "facts": facts,
        "headline": _headline(counts),
        "counts": [(status, counts[status]) for status in STATUSES],
        "bad": [in_full(check) for check in bad_checks(report.checks)],
        "topology": None if report.topology is None else _topology(report.topology),
        "families": [_family(name, report.checks) for name in FAMILIES],
    }


def bad_checks(checks: Iterable[CheckResult]) -> list[CheckResult]:
    """Return the checks that fail or warn, those that fail first."""
    bad = [check for check in checks if check.status in BAD]
    return sorted(bad, key=lambda check: BAD.index(check.status))


def _headline(counts: Counter[Status]) -> str:
    parts = []
    for status in BAD:
        if counts[status]:
            verb = _VERBS[status][counts[status] != 1]
            parts.append(f"{counted(counts[status], 'check')} {verb}")
    if parts:
        return ", ".join(parts)
    unknown = f"; {counts['unknown']:,} unknown" if counts["unknown"] else ""
    return f"No check fails or warns{unknown}"


def in_full(check: CheckResult) -> dict[str, object]:
    return {
        "id": check.id,
        "status": check.status,
        "family": FAMILY_NAMES[check.family],
        "title": check.title,
        "topic": check.topic,
        "cost": check.cost,
        "fix": check.fix,
        "gain": "" if check.gain is None else gain_sentence(check.gain),
        "more": [
            ("read", check.read),
            ("expected", check.expected),
            ("source", check.source),
            ("wrong if", check.when_wrong),
        ],
    }


def _family(name: str, checks: Sequence[CheckResult]) -> dict[str, object]:
    """Return the family's checks by status; unknown checks with the same reason are together."""
    of_family = [check for check in checks if check.family == name]
    by_status: defaultdict[str, list[CheckResult]] = defaultdict(list)
    for check in of_family:
        by_status[check.status].append(check)
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for check in by_status["unknown"]:
        by_reason[check.reason].append(check.id)
    readable = [check for status in ("fail", "warn", "info", "ok") for check in by_status[status]]
    return {
        "name": FAMILY_NAMES[name],
        "counts": [(status, len(by_status[status])) for status in STATUSES if by_status[status]],
        "rows": [
            {"id": check.id, "status": check.status, "topic": check.topic, "reason": check.reason} for check in readable
        ],
        "unknown": sorted(by_reason.items(), key=lambda group: -len(group[1])),
        "num_unknown": len(by_status["unknown"]),
    }


def _topology(topology: Topology) -> dict[str, object]:
    boxes = _Boxes(topology)
    devices = paired_devices(topology)
    names = devices if 1 < len(devices) <= MOST_IN_MATRIX else []
    cells = relations(topology)
    used = {_nearness(relation) for relation in cells.values()}
    return {
        "sources": ", ".join(topology.sources),
        "boxes": boxes.outermost,
        "num_not_drawn": boxes.num_not_drawn,
        "names": names,
        "num_names": len(devices),
        "rows": [(a, [_cell(cells, a, b) for b in names]) for a in names],
        "legend": [
            (code, meaning, number) for number, (code, meaning) in enumerate(RELATIONS.items()) if number in used
        ],
        "problems": topology.problems,
    }


def _cell(cells: Mapping[tuple[str, str], str], a: str, b: str) -> tuple[str, str]:
    """Return the text of a cell and its class: near0 is the nearest."""
    if a == b:
        return "", "none"
    relation = cells.get((a, b), "-")
    nearness = _nearness(relation)
    return relation, "none" if nearness is None else f"near{nearness}"


def _nearness(relation: str) -> int | None:
    codes = list(RELATIONS)
    is_nvlink = relation.startswith("NV") and relation[2:].isdecimal()
    if is_nvlink or relation == "XGMI":
        return 0
    return codes.index(relation) if relation in codes else None


class _Boxes:
    """The drawing: nested boxes, at most MOST_BOXES."""

    def __init__(self, topology: Topology) -> None:
        self._below = nodes_below(topology)
        self._num_boxes = 0
        drawn = [self._box(root, 0) for root in self._below.get(None, [])]
        self.outermost = [box for box in drawn if box is not None]
        self.num_not_drawn = max(0, self._num_boxes - MOST_BOXES)

    def _box(self, node: TopologyNode, depth: int) -> dict[str, Any] | None:
        """Return a node with the nodes below it; None without a device, so that empty ports do not use up boxes."""
        children = self._children(node, depth)
        if node.kind not in DEVICES and not children:
            return None
        self._num_boxes += 1
        if self._num_boxes > MOST_BOXES:
            return None
        return {
            "id": node.id,
            "kind": node.kind,
            "kind_name": _KIND_NAMES.get(node.kind, node.kind.replace("_", " ")),
            "name": own_name(node),
            "is_device": node.kind in DEVICES,
            "is_port": len(children) == 1 and children[0]["is_device"],
            "link": _link(node),
            "is_narrow": has_missing_lanes(node),
            "children": children,
        }

    def _children(self, node: TopologyNode, depth: int) -> list[dict[str, Any]]:
        if depth >= MOST_DEPTH:
            return []
        boxes = [self._box(child, depth + 1) for child in self._below.get(node.id, [])]
        return [box for box in boxes if box is not None]


def _link(node: TopologyNode) -> str:
    link = node.link
    if link is None or link.width is None:
        return ""
    lanes = f"x{link.width}"
    if has_missing_lanes(node):
        lanes += f" of x{link.max_width}"
    return f"{lanes}, {link.speed_gt_per_s:g} GT/s" if link.speed_gt_per_s else lanes
