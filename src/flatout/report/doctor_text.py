"""A DoctorReport or HostsReport as text: what is wrong, in full; what is unknown, with the reason; the topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from flatout.records.doctor import FAMILIES, STATUSES, CheckResult, DoctorReport, HostsReport, Topology, TopologyNode
from flatout.report.terminal import TextStyle

_MOST_IN_MATRIX = 24


def doctor_text(report: DoctorReport, *, style: TextStyle, show_all: bool = False, next_command: str = "") -> str:
    """Return the text of a report. With `show_all`, every check is shown in full, not only those that fail or warn."""
    counts = Counter(check.status for check in report.checks)
    head = [report.host or "a host without a name", f"read from {', '.join(report.read_from) or 'nothing'}"]
    head += [report.taken_at] if report.taken_at else []
    lines = [*style.wrapped(" · ".join(head) if style.has_unicode else ", ".join(head))]
    said = ", ".join(f"{counts[status]} {status}" for status in STATUSES)
    lines += style.wrapped(f"{len(report.checks)} checks: {said}")
    for family in FAMILIES:
        checks = [check for check in report.checks if check.family == family]
        shown = [check for check in checks if show_all or check.status in ("fail", "warn")]
        if shown:
            lines += ["", style.bold(family)]
            for check in shown:
                lines += _in_full(check, style)
    if not show_all:
        if not any(check.status in ("fail", "warn") for check in report.checks):
            lines += ["", "No check fails or warns."]
        lines += _grouped("unknown", (c for c in report.checks if c.status == "unknown"), style)
        infos = [check for check in report.checks if check.status == "info"]
        if infos:
            lines += ["", style.bold("info")]
            for check in infos:
                lines += style.wrapped(check.reason, indent="  ", label=f"{check.id}: ")
        lines += ["", style.bold("ok")]
        lines += style.wrapped(
            ", ".join(check.id for check in report.checks if check.status == "ok") or "none", indent="  "
        )
    if report.topology is not None:
        lines += ["", style.bold("topology"), *topology_text(report.topology, style)]
    if next_command:
        lines += ["", f"next: {next_command}"]
    return "\n".join(lines)


def _in_full(check: CheckResult, style: TextStyle) -> list[str]:
    label = style.bold(f"{check.status:8s}") if check.status in ("fail", "warn") else f"{check.status:8s}"
    lines = [f"  {label}{check.id}: {style.clean(check.title)}"]
    for name, text in (
        ("found", check.reason),
        ("read", check.read),
        ("expected", check.expected),
        ("source", check.source),
        ("costs", check.cost),
        ("fix", check.fix),
        ("wrong if", check.when_wrong),
    ):
        lines += style.wrapped(text, indent="          ", label=f"{name:10s}")
    return lines


def _grouped(title: str, checks: Iterable[CheckResult], style: TextStyle) -> list[str]:
    """Return the checks grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for check in checks:
        reasons.setdefault(check.reason, []).append(check.id)
    lines = ["", style.bold(title)] if reasons else []
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        lines += style.wrapped(f"{reason}:", indent="  ")
        lines += style.wrapped(", ".join(names), indent="      ")
    return lines


def topology_text(topology: Topology, style: TextStyle) -> list[str]:
    """Return the tree, the matrix of how devices reach each other, and what is missing."""
    lines = [*style.wrapped(f"from {', '.join(topology.sources)}", indent="  ")]
    below: dict[str | None, list[TopologyNode]] = {}
    known = {node.id for node in topology.nodes}
    for node in topology.nodes:
        below.setdefault(node.parent if node.parent in known else None, []).append(node)
    for root in below.get(None, []):
        lines += _branch(root, below, style, "  ", "  ", depth=0)
    names = list(dict.fromkeys(name for pair in topology.pairs for name in (pair.a, pair.b)))
    if 1 < len(names) <= _MOST_IN_MATRIX:
        cells = {(pair.a, pair.b): pair.relation for pair in topology.pairs}
        cells |= {(b, a): how for (a, b), how in cells.items()}
        lines += ["", *_matrix(names, cells, style)]
    for problem in topology.problems:
        lines += style.wrapped(problem, indent="  ", label="not whole: ")
    return lines


def _branch(
    node: TopologyNode,
    below: Mapping[str | None, list[TopologyNode]],
    style: TextStyle,
    first: str,
    rest: str,
    depth: int,
) -> list[str]:
    name = "" if node.name in (node.id, node.kind) else f" {node.name}"
    lines = [(first + style.clean(f"{node.id} {node.kind.replace('_', ' ')}{_link(node)}{name}"))[: style.width]]
    children = below.get(node.id, [])
    if depth > 32:  # a damaged source may name a loop
        return lines
    fork, corner, bar = ("├─ ", "└─ ", "│  ") if style.has_unicode else ("|- ", "`- ", "|  ")
    for number, child in enumerate(children):
        is_last = number == len(children) - 1
        lines += _branch(
            child, below, style, rest + (corner if is_last else fork), rest + ("   " if is_last else bar), depth + 1
        )
    return lines


def _link(node: TopologyNode) -> str:
    link = node.link
    if link is None or link.width is None:
        return ""
    speed = f" {link.speed_gt_per_s:g} GT/s" if link.speed_gt_per_s else ""
    is_narrow = link.max_width is not None and link.width < link.max_width
    return f" x{link.width}{f' of x{link.max_width}' if is_narrow else ''}{speed}"


def _matrix(names: list[str], cells: Mapping[tuple[str, str], str], style: TextStyle) -> list[str]:
    """Return the matrix; columns have numbers if the names are too long for the width."""
    width = max(len(name) for name in names)
    heads = names if (width + 1) * (len(names) + 1) <= style.width else [str(number) for number in range(len(names))]
    cell = max(5, *(len(head) + 1 for head in heads))
    labels = [name if heads is names else f"{number:>2} {name}" for number, name in enumerate(names)]
    first = max(len(label) for label in labels)
    lines = ["  " + " " * first + "".join(f"{head:>{cell}}" for head in heads)]
    for label, a in zip(labels, names, strict=True):
        row = ("X" if a == b else cells.get((a, b), "-") for b in names)
        lines.append(f"  {label:{first}}" + "".join(f"{text:>{cell}}" for text in row))
    return lines


def hosts_text(report: HostsReport, *, style: TextStyle) -> str:
    """Return the differences between the hosts, then a line for each host."""
    lines = [f"{len(report.hosts)} hosts compared"]
    if not report.differences:
        lines += ["", "No host differs in what could be compared."]
    for difference in report.differences:
        lines += ["", f"  {style.bold(f'{difference.status:8s}')}{style.clean(difference.fact)}"]
        lines += style.wrapped(difference.reason, indent="          ")
        lines += style.wrapped(difference.usual, indent="          ", label="usual     ")
        for host, text in difference.found.items():
            lines += style.wrapped(text, indent="          ", label=f"{host}: ")
    if report.not_compared:
        lines += ["", style.bold("not compared")]
        for fact, why in report.not_compared.items():
            lines += style.wrapped(why, indent="  ", label=f"{fact}: ")
    if report.not_captured:
        lines += ["", style.bold("not captured")]
        for host, why in report.not_captured.items():
            lines += style.wrapped(why, indent="  ", label=f"{host}: ")
    lines += ["", style.bold("hosts")]
    for each in report.hosts:
        counts = Counter(check.status for check in each.checks)
        bad = [check.id for check in each.checks if check.status == "fail"]
        said = ", ".join(f"{counts[status]} {status}" for status in STATUSES)
        name = each.host or ", ".join(each.read_from)
        lines += style.wrapped(f"{said}{f' ({chr(44).join(bad)})' if bad else ''}", indent="  ", label=f"{name}: ")
    return "\n".join(lines)
