"""Write a DoctorReport or HostsReport as text: problems in full, unknown checks with the reason, the topology."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from flatout.records.doctor import (
    FAMILIES,
    STATUSES,
    CheckResult,
    DoctorReport,
    HostDifference,
    HostsReport,
    Topology,
    TopologyNode,
)
from flatout.report.doctor_gain import gain_sentence
from flatout.report.terminal import TextStyle
from flatout.report.topology import has_missing_lanes, nodes_below, own_name, paired_devices, relations

_MOST_IN_MATRIX = 24
_MOST_FAILURES = 3  # maximum width of a host name, in the comparison of hosts
_DEEPEST = 32  # a damaged source can describe a loop
_INDENT = "          "


def doctor_text(report: DoctorReport, *, style: TextStyle, show_all: bool = False, next_command: str = "") -> str:
    """Write a report; `show_all` writes every check in full, not only those that fail or warn."""
    in_full = [check for check in report.checks if show_all or check.status in ("fail", "warn")]
    lines = [*_head(report, style), *_by_family(in_full, style)]
    if not show_all:
        if not in_full:
            lines += ["", "No check fails or warns."]
        lines += _in_brief(report.checks, style)
    if report.topology is not None:
        lines += ["", style.bold("topology"), *topology_text(report.topology, style)]
    if next_command:
        lines += ["", f"next: {next_command}"]
    return "\n".join(lines)


def _head(report: DoctorReport, style: TextStyle) -> list[str]:
    facts = [report.host or "a host without a name", f"read from {', '.join(report.read_from) or 'nothing'}"]
    if report.taken_at:
        facts.append(report.taken_at)
    separator = " · " if style.has_unicode else ", "
    counts = _counts(report.checks)
    return [*style.wrapped(separator.join(facts)), *style.wrapped(f"{len(report.checks)} checks: {counts}")]


def _counts(checks: Iterable[CheckResult]) -> str:
    counts = Counter(check.status for check in checks)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES)


def _by_family(checks: Sequence[CheckResult], style: TextStyle) -> list[str]:
    lines = []
    for family in FAMILIES:
        of_family = [check for check in checks if check.family == family]
        if of_family:
            lines += ["", style.bold(family)]
        for check in of_family:
            lines += _in_full(check, style)
    return lines


def _in_full(check: CheckResult, style: TextStyle) -> list[str]:
    label = f"{check.status:8s}"
    lines = style.wrapped(f"{check.id}: {check.title}", indent="  ", label=label)
    if check.status in ("fail", "warn"):
        lines[0] = lines[0].replace(label, style.bold(label), 1)
    is_in_title = check.reason == check.title
    for name, text in (
        ("checked", check.topic),
        ("found", "" if is_in_title else check.reason),
        ("read", check.read),
        ("expected", check.expected),
        ("source", check.source),
        ("costs", check.cost),
        ("this job", "" if check.gain is None else f"a fix gains {gain_sentence(check.gain)}"),
        ("fix", check.fix),
        ("wrong if", check.when_wrong),
    ):
        if text:
            lines += style.wrapped(text, indent=_INDENT, label=f"{name:10s}")
    return lines


def _in_brief(checks: Sequence[CheckResult], style: TextStyle) -> list[str]:
    """Write the checks that neither fail nor warn: unknown ones by reason, then info, then the names that are ok."""
    lines = _unknown([check for check in checks if check.status == "unknown"], style)
    infos = [check for check in checks if check.status == "info"]
    if infos:
        lines += ["", style.bold("info")]
    for check in infos:
        lines += style.wrapped(check.reason, indent="  ", label=f"{check.id}: ")
    names = ", ".join(check.id for check in checks if check.status == "ok")
    return [*lines, "", style.bold("ok"), *style.wrapped(names or "none", indent="  ")]


def _unknown(checks: Sequence[CheckResult], style: TextStyle) -> list[str]:
    """Group the checks by reason, the reason of most checks first."""
    if not checks:
        return []
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for check in checks:
        by_reason[check.reason].append(check.id)
    lines = ["", style.bold("unknown")]
    for reason, names in sorted(by_reason.items(), key=lambda group: -len(group[1])):
        lines += style.wrapped(f"{reason}:", indent="  ")
        lines += style.wrapped(", ".join(names), indent="      ")
    return lines


def topology_text(topology: Topology, style: TextStyle) -> list[str]:
    """Write the tree, then how devices are connected as a matrix, then what is missing."""
    lines = style.wrapped(f"from {', '.join(topology.sources)}", indent="  ")
    tree = _Tree(nodes_below(topology), style)
    for root in tree.below.get(None, []):
        lines += tree.branch(root, "  ", "  ", depth=0)
    devices = paired_devices(topology)
    if 1 < len(devices) <= _MOST_IN_MATRIX:
        lines += ["", *_matrix(devices, relations(topology), style)]
    for problem in topology.problems:
        lines += style.wrapped(problem, indent="  ", label="incomplete: ")
    return lines


class _Tree:
    """Draws the nodes below others as branches."""

    def __init__(self, below: Mapping[str | None, list[TopologyNode]], style: TextStyle) -> None:
        self.below = below
        self._style = style
        self._fork, self._corner, self._bar = ("├─ ", "└─ ", "│  ") if style.has_unicode else ("|- ", "`- ", "|  ")

    def branch(self, node: TopologyNode, first: str, rest: str, depth: int) -> list[str]:
        """Draw a node and all below it; `first` begins its line, `rest` the lines below."""
        kind = node.kind.replace("_", " ")
        name = own_name(node)
        text = f"{node.id} {kind}{_link(node)} {name}" if name else f"{node.id} {kind}{_link(node)}"
        lines = [(first + self._style.clean(text))[: self._style.width]]
        children = self.below.get(node.id, [])
        if depth > _DEEPEST or not children:
            return lines
        *upper, last = children
        for child in upper:
            lines += self.branch(child, rest + self._fork, rest + self._bar, depth + 1)
        return lines + self.branch(last, rest + self._corner, rest + "   ", depth + 1)


def _link(node: TopologyNode) -> str:
    link = node.link
    if link is None or link.width is None:
        return ""
    lanes = f" x{link.width}"
    if has_missing_lanes(node):
        lanes += f" of x{link.max_width}"
    return f"{lanes} {link.speed_gt_per_s:g} GT/s" if link.speed_gt_per_s else lanes


def _matrix(devices: list[str], cells: Mapping[tuple[str, str], str], style: TextStyle) -> list[str]:
    """Write a row and a column for each device; columns have numbers if names are too long for the width."""
    longest = max(map(len, devices))
    has_names = (longest + 1) * (len(devices) + 1) <= style.width
    heads = devices if has_names else [str(number) for number in range(len(devices))]
    labels = devices if has_names else [f"{number:>2} {device}" for number, device in enumerate(devices)]
    cell_width = max(5, *(len(head) + 1 for head in heads))
    label_width = max(map(len, labels))
    lines = ["  " + " " * label_width + "".join(f"{head:>{cell_width}}" for head in heads)]
    for label, a in zip(labels, devices, strict=True):
        row = ["X" if a == b else cells.get((a, b), "-") for b in devices]
        lines.append(f"  {label:{label_width}}" + "".join(f"{text:>{cell_width}}" for text in row))
    return lines


def hosts_text(report: HostsReport, *, style: TextStyle) -> str:
    """Write what differs between the hosts, then a line for each."""
    lines = [f"{len(report.hosts)} hosts compared"]
    if not report.differences:
        lines += ["", "No compared fact differs between the hosts."]
    for difference in report.differences:
        label = f"{difference.status:8s}"
        head, *rest = style.wrapped(_difference_title(difference), indent="  ", label=label)
        lines += ["", head.replace(label, style.bold(label), 1), *rest]
        lines += style.wrapped(difference.reason, indent=_INDENT)
        lines += style.wrapped(difference.usual, indent=_INDENT, label="usual     ")
        for host, text in difference.found.items():
            lines += style.wrapped(text, indent=_INDENT, label=f"{host}: ")
    ranges = {fact.fact: fact.usual for fact in report.compared if fact.is_range}
    lines += _reasons("median and range over the hosts", ranges, style)
    lines += _reasons("not compared", report.not_compared, style)
    lines += _reasons("not captured", report.not_captured, style)
    lines += ["", style.bold("hosts")]
    for host_report in report.hosts:
        name = host_report.host or ", ".join(host_report.read_from)
        lines += style.wrapped(_counts_and_failures(host_report.checks), indent="  ", label=f"{name}: ")
    return "\n".join(lines)


def _difference_title(difference: HostDifference) -> str:
    """Return the fact or, for a check, its finding on the first host that differs."""
    if difference.check is None or not difference.hosts:
        return difference.fact
    return f"{difference.check}: {difference.found[difference.hosts[0]]}"


def _reasons(title: str, reasons: Mapping[str, str], style: TextStyle) -> list[str]:
    if not reasons:
        return []
    lines = ["", style.bold(title)]
    for name, reason in reasons.items():
        lines += style.wrapped(reason, indent="  ", label=f"{name}: ")
    return lines


def _counts_and_failures(checks: Sequence[CheckResult]) -> str:
    failures = [f"{check.id}: {check.title}" for check in checks if check.status == "fail"]
    shown = failures[:_MOST_FAILURES]
    if len(failures) > len(shown):
        shown.append(f"{len(failures) - len(shown)} more")
    return f"{_counts(checks)} ({'; '.join(shown)})" if shown else _counts(checks)
