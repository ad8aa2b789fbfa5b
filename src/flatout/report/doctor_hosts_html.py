"""A HostsReport as one self-contained HTML file: hosts unlike the others first, then facts, and each host's findings.

A finding that most hosts share is shown once instead of at each host, so that a page of a thousand hosts is readable.
No script, no outside reference; texts from the machines are hostile, and the template escapes all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from flatout import __version__
from flatout.records.doctor import STATUSES, CheckResult, DoctorReport, HostDifference, HostsReport
from flatout.report.command import command_line
from flatout.report.doctor_html import BAD, in_full
from flatout.report.phrases import counted
from flatout.report.template import rendered

MOST_HOSTS = 500
MOST_NAMED = 24  # hosts that have one value
MOST_IN_TABLE = 6
MOST_OPEN = 12  # hosts whose findings are shown at once


def hosts_html(report: HostsReport, command: Sequence[str]) -> str:
    return rendered("doctor_hosts.html.j2", page_content(report, command))


def page_content(report: HostsReport, command: Sequence[str]) -> dict[str, object]:
    """Return what the template shows, as texts and numbers ready to print."""
    domain = _domain([*map(_name, report.hosts), *report.not_captured])
    if domain:
        report = _without(domain, report)
    unlike: dict[str, list[str]] = {}
    for difference in report.differences:
        for host in difference.hosts:
            unlike.setdefault(host, []).append(difference.check or difference.fact)
    shared = _of_most(report.hosts)
    ordered = sorted(report.hosts, key=lambda each: _rank(each, report.differences, unlike))
    with_faults = sum(any(check.status == "fail" for check in each.checks) for each in report.hosts)
    taken = sorted(each.taken_at for each in report.hosts if each.taken_at)
    return {
        "tool_version": __version__,
        "command": command_line(command),
        "facts": [
            counted(len(report.hosts), "host"),
            *([f"all of {domain}"] if domain else []),
            *([_when(taken)] if taken else []),
        ],
        "headline": _headline(report, unlike),
        "counts": [
            ("hosts", len(report.hosts), ""),
            ("unlike the others", len(unlike), "warn"),
            ("with a check that fails", with_faults, "fail"),
            ("not captured", len(report.not_captured), "fail"),
        ],
        "not_captured": list(report.not_captured.items()),
        "differences": [_difference(one) for one in report.differences],
        "compared": [
            {
                "fact": one.fact,
                "num_hosts": counted(one.num_hosts, "host"),
                "usual": one.usual,
                "is_alike": not one.unlike,
                "unlike": _by_value(one.unlike, MOST_IN_TABLE),
            }
            for one in sorted(report.compared, key=lambda one: not one.unlike)
        ],
        "not_compared": list(report.not_compared.items()),
        "shared": [
            {**in_full(check), "on": f"{num_bad:,} of {counted(num_known, 'host')}"}
            for check, num_bad, num_known in shared.values()
        ],
        "hosts": [_host(each, unlike.get(_name(each), []), shared) for each in ordered[:MOST_HOSTS]],
        "num_open": MOST_OPEN if len(unlike) <= MOST_OPEN else 0,
        "num_left_out": max(0, len(ordered) - MOST_HOSTS),
    }


def _name(report: DoctorReport) -> str:
    return report.host or ", ".join(report.read_from) or "a host without a name"


def _domain(names: Sequence[str]) -> str:
    """`.cluster.example.org`, if all names end with it and each has a host part before it."""
    ends = [name.partition(".")[1] + name.partition(".")[2] for name in names]
    return ends[0] if len(names) > 1 and len(set(ends)) == 1 and len(ends[0]) > 1 else ""


def _without(domain: str, report: HostsReport) -> HostsReport:
    """Return the report with short host names, so that several fit in a line."""

    def short(name: str) -> str:
        return name.removesuffix(domain)

    return msgspec.structs.replace(
        report,
        hosts=tuple(msgspec.structs.replace(each, host=short(_name(each))) for each in report.hosts),
        not_captured={short(host): why for host, why in report.not_captured.items()},
        compared=tuple(
            msgspec.structs.replace(one, unlike={short(host): value for host, value in one.unlike.items()})
            for one in report.compared
        ),
        differences=tuple(
            msgspec.structs.replace(
                one,
                hosts=tuple(map(short, one.hosts)),
                found={short(host): value for host, value in one.found.items()},
                reason=one.reason.replace(domain, ""),
            )
            for one in report.differences
        ),
    )


def _when(taken: Sequence[str]) -> str:
    return taken[0] if taken[0] == taken[-1] else f"{taken[0]} to {taken[-1]}"


def _headline(report: HostsReport, unlike: Mapping[str, list[str]]) -> str:
    compared = counted(len(report.hosts), "host")
    if not unlike:
        return f"{compared}: none is unlike the others"
    if len(unlike) == len(report.hosts):
        return f"{compared}, and they differ"
    names = list(unlike)
    named = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{len(names)} of {compared} {'is' if len(names) == 1 else 'are'} unlike the others: {named}"


def _rank(
    report: DoctorReport, differences: Sequence[HostDifference], unlike: Mapping[str, list[str]]
) -> tuple[object, ...]:
    """Return the sort key of a host: most differences of the worst kind first, then its own checks, then its name."""
    name = _name(report)
    counts = Counter(check.status for check in report.checks)
    worst = [sum(name in one.hosts for one in differences if one.status == status) for status in ("fail", "warn")]
    return (*(-number for number in worst), -len(unlike.get(name, [])), -counts["fail"], -counts["warn"], name)


def _difference(one: HostDifference) -> dict[str, object]:
    return {
        "fact": one.check or one.fact,
        "is_check": one.check is not None,
        "status": one.status,
        "reason": one.reason,
        "usual": one.usual,
        "found": _by_value(one.found),
    }


def _by_value(found: Mapping[str, str], most: int = MOST_NAMED) -> list[tuple[str, str]]:
    """Return each value with the hosts that have it, the rarest value first."""
    hosts: dict[str, list[str]] = {}
    for host, value in found.items():
        hosts.setdefault(value, []).append(host)
    return [(value, _named(names, most)) for value, names in sorted(hosts.items(), key=lambda item: len(item[1]))]


def _named(names: Sequence[str], most: int) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def _of_most(reports: Sequence[DoctorReport]) -> dict[str, tuple[CheckResult, int, int]]:
    """Checks that fail or warn on at least half of the hosts that could judge them: id -> its worst one, how many, of.

    With one host or two, each has its own: nothing is usual.
    """
    known: dict[str, list[CheckResult]] = {}
    for report in reports:
        for check in report.checks:
            if check.status != "unknown":
                known.setdefault(check.id, []).append(check)
    found = {}
    for name, checks in known.items():
        bad = sorted((check for check in checks if check.status in BAD), key=lambda check: BAD.index(check.status))
        if len(checks) > 2 and 2 * len(bad) >= len(checks):
            found[name] = (bad[0], len(bad), len(checks))
    return dict(sorted(found.items(), key=lambda item: (BAD.index(item[1][0].status), -item[1][1], item[0])))


def _host(
    report: DoctorReport, unlike: Sequence[str], shared: Mapping[str, tuple[CheckResult, int, int]]
) -> dict[str, object]:
    counts = Counter(check.status for check in report.checks)
    bad = sorted((check for check in report.checks if check.status in BAD), key=lambda check: BAD.index(check.status))
    return {
        "name": _name(report),
        "counts": [(status, counts[status]) for status in STATUSES if counts[status] and status != "info"],
        "unlike": unlike,
        "own": [
            {"id": check.id, "status": check.status, "reason": check.reason, "fix": check.fix}
            for check in bad
            if check.id not in shared
        ],
        "shared": [check.id for check in bad if check.id in shared],
    }
