"""Checks of an NCCL_DEBUG=INFO log for failures: completion errors, and warnings with known causes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flatout.catalog.nccl_messages import NcclMessage, nccl_message
from flatout.doctor.by_host import distinct, values_by_host
from flatout.doctor.check import check, fail, named, ok, warn, with_missing
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.parse.nccl_log import LoggedWarning, NcclLog
from flatout.doctor.unknown import NotReadError

_READ = "NCCL log (NCCL_DEBUG=INFO): "
_NO_CONNECTION_FIX = (
    "set NCCL_SOCKET_IFNAME to an interface that reaches the other hosts; open the ephemeral ports between hosts in "
    "their firewalls (net-port-range); check MASTER_ADDR, and whether a rank ended before it listened"
)
_LONGEST = 160  # maximum number of characters of a warning that a reason quotes
# ibv_wc_status of libibverbs.
_STATUS = {
    1: "local length error",
    4: "local protection error: the memory is not registered, or no longer registered",
    5: "flushed, as a consequence of an earlier error",
    9: "remote invalid request",
    10: "remote access error",
    11: "remote operation error",
    12: "no answer after all retries: a link, cable or flow-control (PFC) fault, or the other side exited",
    13: "the receiver was still not ready after all retries",
}
_FLUSHED = 5


def _none(machine: Machine) -> CheckOutcome:
    """Report that the log shows no problem: `ok` only if the log extends beyond NCCL's start."""
    log = machine.nccl_log
    if not log.num_started:
        raise NotReadError(f"none in {log.num_lines} lines, but the log ends before NCCL has started completely")
    num_missing = max(0, (log.num_ranks or 0) - log.num_started)
    none = ok(f"none in {log.num_lines:,} lines")
    return with_missing(none, num_missing, f"of {log.num_ranks} ranks have not finished starting when the log ends")


@check(
    "nccl-log-completion-error",
    "network",
    topic="RDMA completion errors",
    read=_READ
    + "`Got completion ... with error` or `status=`: the first one that is not a consequence of another error (5)",
    expected="none",
    source="libibverbs, enum ibv_wc_status",
    cost="the job ends",
    fix="12: check links, cables, PFC and routes of both hosts (rdma-* checks); NCCL_IB_TIMEOUT is only a stopgap",
    when_wrong="the other side crashed first: look for the earliest error among all ranks",
)
def completion_error(machine: Machine) -> CheckOutcome:
    errors = machine.nccl_log.completion_errors
    if not errors:
        return _none(machine)
    causes = [error for error in errors if error.status != _FLUSHED]
    first = (causes or errors)[0]
    circumstances = {"on": first.host, "at": first.device, "with": first.peer}
    where = "".join(f", {preposition} {name}" for preposition, name in circumstances.items() if name)
    meaning = _STATUS.get(first.status, "see ibv_wc_status")
    return fail(f"RDMA completion error, status {first.status}: {meaning}{where} ({len(errors)} in total)")


@check(
    "nccl-log-warnings",
    "software",
    topic="NCCL warnings",
    read=_READ + "lines of WARN; `Call to connect returned ..., retrying`",
    expected="none",
    source="NCCL documentation, troubleshooting",
    cost="most of them end the job; some announce a slow fallback",
    fix="start with the first warning",
    when_wrong="`No plugin found` and the like are normal",
)
def warnings(machine: Machine) -> CheckOutcome:
    log = machine.nccl_log
    if log.warnings:
        return _warnings_with_known_cause(log) or _first_warning(log.warnings)
    if log.retries and not log.num_started:
        return warn(f"connections are being retried ({values_by_host(log.retries)}), and no rank has finished starting")
    return _none(machine)


def _warnings_with_known_cause(log: NcclLog) -> CheckOutcome | None:
    """Judge the warnings by the table of known warnings; None if the table has none of them."""
    if log.no_connection:
        return fail(_no_connection(log), fix=_NO_CONNECTION_FIX)
    by_cause: dict[str, tuple[NcclMessage, LoggedWarning]] = {}
    for warning in log.warnings:
        message = nccl_message(warning.whole_text)
        if message is not None:
            by_cause.setdefault(message.cause, (message, warning))
    if not by_cause:
        return None
    in_order = sorted(by_cause.values(), key=lambda known: (known[0].is_consequence, known[0].status != "fail"))
    message, warning = in_order[0]
    num_unknown = sum(nccl_message(other.whole_text) is None for other in log.warnings)
    if message.status != "fail" and num_unknown:
        return None
    return _known_cause(message, warning, [other.cause for other, _ in in_order[1:]])


def _known_cause(message: NcclMessage, warning: LoggedWarning, other_causes: Sequence[str]) -> CheckOutcome:
    host = f" on {warning.host}" if warning.host else ""
    others = f"; also: {named(other_causes)}" if other_causes else ""
    reason = f"{message.cause}{host}: {warning.text[:_LONGEST]}{others}"
    outcome = fail if message.status == "fail" else warn
    return outcome(reason, fix=message.fix, source=message.source)


def _no_connection(log: NcclLog) -> str:
    reason = f"ranks cannot reach others ({values_by_host(log.no_connection)})"
    interfaces = sorted({*log.bootstrap.values(), *distinct(log.socket_interfaces)})
    if not interfaces:
        return reason
    return f"{reason}, over {named(interfaces)}: set NCCL_SOCKET_IFNAME to an interface that reaches them"


def _first_warning(warnings: Iterable[LoggedWarning]) -> CheckOutcome:
    unknown = [warning for warning in warnings if nccl_message(warning.whole_text) is None]
    first = unknown[0]
    host = f" on {first.host}" if first.host else ""
    source = f" ({first.source})" if first.source else ""
    text = f"{first.text[:_LONGEST]}{source}"
    if len(unknown) == 1:
        return warn(f"an NCCL warning{host}: {text}")
    return warn(f"{len(unknown)} NCCL warnings, the first{host}: {text}")
