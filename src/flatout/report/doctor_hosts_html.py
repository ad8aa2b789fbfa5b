"""Write a HostsReport as one self-contained HTML file: hosts that differ first, then facts, and each host's problems.

A problem of most hosts is shown in full only once, so that a page with a thousand hosts stays readable. No script, no
outside reference; texts from the machines are hostile, and the template escapes all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from flatout import __version__
from flatout.records.doctor import STATUSES, CheckResult, ComparedFact, DoctorReport, HostDifference, HostsReport
from flatout.report.command import command_line
from flatout.report.doctor_html import BAD, bad_checks, in_full
from flatout.report.phrases import counted
from flatout.report.template import rendered

MOST_HOSTS = 500
MOST_NAMED = 24  # hosts listed for one value
MOST_IN_TABLE = 6
MOST_OPEN = 12  # hosts whose problems are shown at once
MOST_IN_HEADLINE = 3


class _SharedCheck(NamedTuple):
    """A check that fails or warns on most hosts."""

    worst: CheckResult
    num_bad: int
    num_judged: int


def hosts_html(report: HostsReport, command: Sequence[str]) -> str:
    return rendered("doctor_hosts.html.j2", page_content(report, command))


def page_content(report: HostsReport, command: Sequence[str]) -> dict[str, object]:
    """Return what the template shows, as texts and numbers ready to print."""
    domain = _common_domain([*map(_name, report.hosts), *report.not_captured])
    if domain:
        report = _without_domain(domain, report)
    unlike = _differing_facts(report.differences)
    shared = _shared_checks(report.hosts)
    ordered = sorted(report.hosts, key=lambda host: _rank(host, report.differences, unlike))
    num_failing = sum(any(check.status == "fail" for check in host.checks) for host in report.hosts)
    return {
        "tool_version": __version__,
        "command": command_line(command),
        "facts": _facts(report, domain),
        "headline": _headline(report, unlike),
        "counts": [
            ("hosts", len(report.hosts), ""),
            ("different from the others", len(unlike), "warn"),
            ("with a check that fails", num_failing, "fail"),
            ("not captured", len(report.not_captured), "fail"),
        ],
        "not_captured": list(report.not_captured.items()),
        "differences": [_difference(difference) for difference in report.differences],
        "compared": [_compared_fact(fact) for fact in sorted(report.compared, key=lambda fact: not fact.unlike)],
        "not_compared": list(report.not_compared.items()),
        "shared": [_shared_check(check) for check in shared.values()],
        "hosts": [_host(host, unlike.get(_name(host), []), shared) for host in ordered[:MOST_HOSTS]],
        "num_open": MOST_OPEN if len(unlike) <= MOST_OPEN else 0,
        "num_not_shown": max(0, len(ordered) - MOST_HOSTS),
    }


def _name(report: DoctorReport) -> str:
    return report.host or ", ".join(report.read_from) or "a host without a name"


def _differing_facts(differences: Sequence[HostDifference]) -> dict[str, list[str]]:
    """Return host -> the facts in which it differs."""
    facts: defaultdict[str, list[str]] = defaultdict(list)
    for difference in differences:
        for host in difference.hosts:
            facts[host].append(difference.check or difference.fact)
    return dict(facts)


def _facts(report: HostsReport, domain: str) -> list[str]:
    facts = [counted(len(report.hosts), "host")]
    if domain:
        facts.append(f"all of {domain}")
    taken = sorted(host.taken_at for host in report.hosts if host.taken_at)
    if taken:
        facts.append(taken[0] if taken[0] == taken[-1] else f"{taken[0]} to {taken[-1]}")
    return facts


def _common_domain(names: Sequence[str]) -> str:
    """Return `.cluster.example.org` if all names end with it and have a host's name before it; else nothing."""
    domains = {dot + domain for _, dot, domain in (name.partition(".") for name in names)}
    if len(names) < 2 or len(domains) > 1:
        return ""
    [domain] = domains
    return "" if domain == "." else domain


def _without_domain(domain: str, report: HostsReport) -> HostsReport:
    """Return the report with short host names, so that several fit on a line."""

    def short(name: str) -> str:
        return name.removesuffix(domain)

    def by_short_name(values: Mapping[str, str]) -> dict[str, str]:
        return {short(name): value for name, value in values.items()}

    hosts = [msgspec.structs.replace(host, host=short(_name(host))) for host in report.hosts]
    compared = [msgspec.structs.replace(fact, unlike=by_short_name(fact.unlike)) for fact in report.compared]
    differences = [
        msgspec.structs.replace(
            difference,
            hosts=tuple(map(short, difference.hosts)),
            found=by_short_name(difference.found),
            reason=difference.reason.replace(domain, ""),
        )
        for difference in report.differences
    ]
    return msgspec.structs.replace(
        report,
        hosts=tuple(hosts),
        not_captured=by_short_name(report.not_captured),
        compared=tuple(compared),
        differences=tuple(differences),
    )


def _headline(report: HostsReport, unlike: Mapping[str, list[str]]) -> str:
    num_hosts = counted(len(report.hosts), "host")
    if not unlike:
        return f"{num_hosts}: none differs from the others"
    if len(unlike) == len(report.hosts):
        return f"{num_hosts}, and they differ"
    verb = "differs" if len(unlike) == 1 else "differ"
    return f"{len(unlike)} of {num_hosts} {verb} from the others: {_named(list(unlike), MOST_IN_HEADLINE)}"


def _rank(
    report: DoctorReport, differences: Sequence[HostDifference], unlike: Mapping[str, list[str]]
) -> tuple[object, ...]:
    """Return a key that sorts the most pressing hosts first: by differences, the worst first, then by their checks."""
    name = _name(report)
    worst = Counter(difference.status for difference in differences if name in difference.hosts)
    counts = Counter(check.status for check in report.checks)
    num_differences = len(unlike.get(name, []))
    return (-worst["fail"], -worst["warn"], -num_differences, -counts["fail"], -counts["warn"], name)


def _difference(difference: HostDifference) -> dict[str, object]:
    return {
        "fact": difference.check or difference.fact,
        "title": difference.found[difference.hosts[0]] if difference.check and difference.hosts else "",
        "is_check": difference.check is not None,
        "status": difference.status,
        "reason": difference.reason,
        "usual": difference.usual,
        "found": _by_value(difference.found),
    }


def _compared_fact(fact: ComparedFact) -> dict[str, object]:
    return {
        "fact": fact.fact,
        "num_hosts": counted(fact.num_hosts, "host"),
        "usual": fact.usual,
        "is_alike": not fact.unlike,
        "unlike": _by_value(fact.unlike, MOST_IN_TABLE),
    }


def _by_value(values: Mapping[str, str], most: int = MOST_NAMED) -> list[tuple[str, str]]:
    """Return each value with the hosts that have it, the rarest first."""
    hosts: defaultdict[str, list[str]] = defaultdict(list)
    for host, value in values.items():
        hosts[value].append(host)
    rarest_first = sorted(hosts.items(), key=lambda group: len(group[1]))
    return [(value, _named(names, most)) for value, names in rarest_first]


def _named(names: Sequence[str], most: int) -> str:
    shown = ", ".join(names[:most])
    num_more = len(names) - most
    return f"{shown} and {num_more:,} more" if num_more > 0 else shown


def _shared_checks(reports: Sequence[DoctorReport]) -> dict[str, _SharedCheck]:
    """Return the checks that fail or warn on at least half of the hosts that could judge them, the worst first.

    With one host or two, nothing is shared.
    """
    judged: defaultdict[str, list[CheckResult]] = defaultdict(list)
    for report in reports:
        for check in report.checks:
            if check.status != "unknown":
                judged[check.id].append(check)
    shared = {}
    for check_id, checks in judged.items():
        bad = bad_checks(checks)
        if len(checks) > 2 and 2 * len(bad) >= len(checks):
            shared[check_id] = _SharedCheck(bad[0], len(bad), len(checks))
    worst_first = sorted(shared.items(), key=lambda item: (BAD.index(item[1].worst.status), -item[1].num_bad, item[0]))
    return dict(worst_first)


def _shared_check(check: _SharedCheck) -> dict[str, object]:
    return {**in_full(check.worst), "on": f"{check.num_bad:,} of {counted(check.num_judged, 'host')}"}


def _host(report: DoctorReport, unlike: Sequence[str], shared: Mapping[str, _SharedCheck]) -> dict[str, object]:
    counts = Counter(check.status for check in report.checks)
    bad = bad_checks(report.checks)
    own = [check for check in bad if check.id not in shared]
    return {
        "name": _name(report),
        "counts": [(status, counts[status]) for status in STATUSES if counts[status] and status != "info"],
        "unlike": unlike,
        "own": [{"id": check.id, "status": check.status, "title": check.title, "fix": check.fix} for check in own],
        "shared": [check.id for check in bad if check.id in shared],
    }
