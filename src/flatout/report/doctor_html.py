"""A DoctorReport as one self-contained HTML file: what is wrong, the topology drawn, every check by family.

No script, no outside reference; texts from the machine are hostile, and the template escapes all of them. The drawing
is of nested boxes, a device within the ports and switches that it is behind, so that it fits any width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flatout import __version__
from flatout.records.doctor import FAMILIES, STATUSES, CheckResult, DoctorReport, Status, Topology, TopologyNode
from flatout.report.command import command_line
from flatout.report.phrases import counted
from flatout.report.template import rendered

FAMILY_NAMES = {"gpu": "GPUs", "software": "Software", "host": "Host", "network": "Network", "storage": "Storage"}
DEVICES = ("gpu", "nic", "nvswitch", "storage")
BAD: tuple[Status, ...] = ("fail", "warn")
_VERBS = {"fail": ("fails", "fail"), "warn": ("warns", "warn")}
MOST_BOXES = 600
MOST_IN_MATRIX = 32
MOST_DEPTH = 24  # a damaged source may name a loop
# From near to far, as `nvidia-smi topo -m` explains them.
RELATIONS = {
    "NV": "NVLink, or XGMI of AMD",
    "PIX": "at most one PCIe bridge",
    "PXB": "several PCIe bridges, not the CPU's",
    "PHB": "a PCIe host bridge, as of the CPU",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
}


def doctor_html(report: DoctorReport, command: Sequence[str]) -> str:
    return rendered("doctor.html.j2", page_content(report, command))


def page_content(report: DoctorReport, command: Sequence[str]) -> dict[str, object]:
    """Return what the template shows, as texts and numbers ready to print."""
    counts = Counter(check.status for check in report.checks)
    bad = sorted(
        (check for check in report.checks if check.status in BAD),
        key=lambda check: STATUSES.index(check.status),
    )
    facts = [report.host or "a host without a name", f"read from {', '.join(report.read_from) or 'nothing'}"]
    return {
        "tool_version": __version__,
        "command": command_line(command),
        "facts": [*facts, *([report.taken_at] if report.taken_at else []), counted(len(report.checks), "check")],
        "headline": _headline(counts),
        "counts": [(status, counts[status]) for status in STATUSES],
        "bad": [in_full(check) for check in bad],
        "topology": None if report.topology is None else _topology(report.topology),
        "families": [_family(name, report.checks) for name in FAMILIES],
    }


def _headline(counts: Counter[Status]) -> str:
    if not counts["fail"] and not counts["warn"]:
        return "No check fails or warns" + (f"; {counts['unknown']:,} unknown" if counts["unknown"] else "")
    parts = [
        f"{counted(counts[status], 'check')} {_VERBS[status][counts[status] != 1]}" for status in BAD if counts[status]
    ]
    return ", ".join(parts)


def in_full(check: CheckResult) -> dict[str, object]:
    return {
        "id": check.id,
        "status": check.status,
        "family": FAMILY_NAMES[check.family],
        "title": check.title,
        "reason": check.reason,
        "cost": check.cost,
        "fix": check.fix,
        "more": [
            ("read", check.read),
            ("expected", check.expected),
            ("source", check.source),
            ("wrong if", check.when_wrong),
        ],
    }


def _family(name: str, checks: Sequence[CheckResult]) -> dict[str, object]:
    """Return the checks of a family by status, with the unknown ones grouped by reason."""
    mine = [check for check in checks if check.family == name]
    counts = Counter(check.status for check in mine)
    unknown: dict[str, list[str]] = {}
    for check in mine:
        if check.status == "unknown":
            unknown.setdefault(check.reason, []).append(check.id)
    return {
        "name": FAMILY_NAMES[name],
        "counts": [(status, counts[status]) for status in STATUSES if counts[status]],
        "rows": [
            {"id": check.id, "status": check.status, "title": check.title, "reason": check.reason}
            for status in ("fail", "warn", "info", "ok")
            for check in mine
            if check.status == status
        ],
        "unknown": sorted(unknown.items(), key=lambda item: -len(item[1])),
        "num_unknown": counts["unknown"],
    }


def _topology(topology: Topology) -> dict[str, object]:
    known = {node.id for node in topology.nodes}
    below: dict[str | None, list[TopologyNode]] = {}
    for node in topology.nodes:
        below.setdefault(node.parent if node.parent in known else None, []).append(node)
    boxes: list[dict[str, Any]] = []
    left = [MOST_BOXES]
    for root in below.get(None, []):
        box = _box(root, below, left, 0)
        if box is not None:
            boxes.append(box)
    names = list(dict.fromkeys(name for pair in topology.pairs for name in (pair.a, pair.b)))
    cells = {(pair.a, pair.b): pair.relation for pair in topology.pairs}
    cells |= {(b, a): how for (a, b), how in cells.items()}
    is_shown = 1 < len(names) <= MOST_IN_MATRIX
    used = {_nearness(how) for how in cells.values()}
    return {
        "sources": ", ".join(topology.sources),
        "boxes": boxes,
        "num_left_out": max(0, -left[0]),
        "names": names if is_shown else [],
        "num_names": len(names),
        "rows": [(a, [(cells.get((a, b), "-") if a != b else "", _near(cells, a, b)) for b in names]) for a in names]
        if is_shown
        else [],
        "legend": [
            (code, meaning, number) for number, (code, meaning) in enumerate(RELATIONS.items()) if number in used
        ],
        "problems": topology.problems,
    }


def _near(cells: Mapping[tuple[str, str], str], a: str, b: str) -> str:
    """Return the class of a cell: 0 is the nearest."""
    found = None if a == b else _nearness(cells.get((a, b), ""))
    return "none" if found is None else f"near{found}"


def _nearness(relation: str) -> int | None:
    codes = list(RELATIONS)
    if relation == "XGMI" or (relation.startswith("NV") and relation[2:].isdecimal()):
        return 0
    return codes.index(relation) if relation in codes else None


def _box(
    node: TopologyNode, below: Mapping[str | None, list[TopologyNode]], left: list[int], depth: int
) -> dict[str, Any] | None:
    """Return a node with the devices behind it; None if there are none, so that empty ports do not hide the others."""
    children = []
    if depth < MOST_DEPTH:
        children = [box for child in below.get(node.id, []) if (box := _box(child, below, left, depth + 1))]
    if node.kind not in DEVICES and not children:
        return None
    left[0] -= 1
    if left[0] < 0:
        return None
    return {
        "id": node.id,
        "kind": node.kind,
        "kind_name": "GPU" if node.kind == "gpu" else "NIC" if node.kind == "nic" else node.kind.replace("_", " "),
        "name": "" if node.name in (node.id, node.kind) else node.name,
        "is_device": node.kind in DEVICES,
        "is_port": len(children) == 1 and children[0]["is_device"],
        "link": _link(node),
        "is_narrow": _is_narrow(node),
        "children": children,
    }


def _is_narrow(node: TopologyNode) -> bool:
    link = node.link
    return bool(link and link.width and link.max_width and link.width < link.max_width)


def _link(node: TopologyNode) -> str:
    link = node.link
    if link is None or link.width is None:
        return ""
    narrow = f" of x{link.max_width}" if _is_narrow(node) else ""
    return f"x{link.width}{narrow}" + (f", {link.speed_gt_per_s:g} GT/s" if link.speed_gt_per_s else "")
