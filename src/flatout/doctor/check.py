"""Define a check: its declaration, and a function from Machine to its outcome.

A check returns a CheckOutcome, or raises NotReadError (`unknown`) or NotHereError (`info`). Unexpected text also
results in `unknown`, so that damaged input never ends a run and never counts as good.

The reason of an outcome that fails or warns is the title of its result, so it names the fault and the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from flatout.doctor.gain import gain_of
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.unknown import NotHereError, NotReadError
from flatout.records.doctor import CheckResult, Family, JobTraffic, Traffic

MOST_NAMED = 6  # maximum number of devices named in a reason


Judge = Callable[[Machine], CheckOutcome]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    family: Family
    topic: str
    read: str
    expected: str
    source: str
    cost: str
    fix: str
    when_wrong: str
    judge: Judge
    traffic: Traffic | None = None  # of a path or link: what it carries


def check(
    id: str,
    family: Family,
    *,
    topic: str,
    read: str,
    expected: str,
    source: str,
    cost: str,
    fix: str,
    when_wrong: str,
    traffic: Traffic | None = None,
) -> Callable[[Judge], Check]:
    """Turn the decorated function into a Check; a module's Checks are found by their type."""

    def made(judge: Judge) -> Check:
        return Check(
            id=id,
            family=family,
            topic=topic,
            read=read,
            expected=expected,
            source=source,
            cost=cost,
            fix=fix,
            when_wrong=when_wrong,
            judge=judge,
            traffic=traffic,
        )

    return made


def run_check(one: Check, machine: Machine, job: JobTraffic | None = None) -> CheckResult:
    """Judge the machine.

    Given the times of a job, also say what the job would gain if a defect of a path or link were fixed.
    """
    try:
        outcome = one.judge(machine)
    except NotReadError as error:
        outcome = CheckOutcome("unknown", str(error))
    except NotHereError as error:
        outcome = CheckOutcome("info", str(error))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        outcome = CheckOutcome("unknown", f"the input cannot be parsed: {type(error).__name__}: {error}")
    return CheckResult(
        id=one.id,
        family=one.family,
        status=outcome.status,
        topic=one.topic,
        title=_title(one, outcome),
        read=one.read,
        reason=outcome.reason,
        expected=one.expected,
        source=outcome.source or one.source,
        cost=outcome.cost or one.cost,
        fix=outcome.fix or one.fix,
        when_wrong=one.when_wrong,
        gain=gain_of(one.traffic, outcome, job, machine.snapshot.host) if job is not None else None,
    )


def _title(one: Check, outcome: CheckOutcome) -> str:
    """Return the finding; if nothing is at fault, the topic precedes it."""
    if outcome.status in ("fail", "warn"):
        return outcome.reason
    return f"{one.topic}: {outcome.reason}"


def ok(reason: str) -> CheckOutcome:
    return CheckOutcome("ok", reason)


def info(reason: str) -> CheckOutcome:
    return CheckOutcome("info", reason)


def warn(
    reason: str,
    *,
    cost: str | None = None,
    fix: str | None = None,
    source: str | None = None,
    bandwidth_share: float | None = None,
) -> CheckOutcome:
    return CheckOutcome("warn", reason, cost, fix, source, bandwidth_share)


def fail(
    reason: str,
    *,
    cost: str | None = None,
    fix: str | None = None,
    source: str | None = None,
    bandwidth_share: float | None = None,
) -> CheckOutcome:
    return CheckOutcome("fail", reason, cost, fix, source, bandwidth_share)


def named(items: Iterable[str]) -> str:
    """Join names, at most MOST_NAMED: `a, b and 7 more`."""
    all_items = list(items)
    if len(all_items) <= MOST_NAMED:
        return ", ".join(all_items)
    return f"{', '.join(all_items[:MOST_NAMED])} and {len(all_items) - MOST_NAMED} more"


def none_in_log(machine: Machine) -> CheckOutcome:
    """Report that the kernel log has no such event: `ok` only if the log is not an excerpt."""
    log = machine.kernel_log
    if log.num_missed:
        raise NotReadError(f"none in {log.num_lines} lines, but {log.num_missed} messages of the kernel were lost")
    if log.is_excerpt:
        raise NotReadError(
            f"none in the {log.num_lines} lines of the kernel log that were read, which are only an excerpt"
        )
    return ok(f"none in {log.num_lines:,} lines of the kernel log")


def need(values: Sequence[object], reason: str) -> None:
    """Raise NotReadError if nothing was read: a missing value is not a good value."""
    if not values:
        raise NotReadError(reason)


def with_missing(outcome: CheckOutcome, num_missing: int, what: str) -> CheckOutcome:
    """Add to the outcome that some devices have no value: a bad outcome stays, but `ok` becomes `unknown`."""
    if not num_missing:
        return outcome
    status = "unknown" if outcome.status == "ok" else outcome.status
    return msgspec.structs.replace(outcome, status=status, reason=f"{outcome.reason}; {num_missing} {what}")
