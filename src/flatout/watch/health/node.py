"""Judge a node by its kernel log, its GPUs' counters and its jobs' failures. Out: `NodeHealth`, weighed for a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from flatout.doctor.parse.ipmi_text import read_sdr_text
from flatout.doctor.parse.kernel_log import parse_kernel_log
from flatout.errors import InputError
from flatout.input_files import bounded_log, read_bytes, read_text
from flatout.keep.ledger_lines import FailureLine, decode_line
from flatout.probe.nvml import Gpus
from flatout.probe.port_counters import read_port_health
from flatout.probe.redfish import read_redfish
from flatout.probe.redfish_client import RedfishClient, credentials
from flatout.probe.snapshot import read_kernel_log
from flatout.records.bmc import BmcReading
from flatout.records.gpu_health import GpuHealth, HealthReading, PortHealth
from flatout.records.watch import DrainCost, GpuAdvice, NodeAction, NodeHealth, NodeSign
from flatout.watch.health.bmc_signs import bmc_signs
from flatout.watch.health.expected_loss import Evidence, StopCosts, drain_cost, failure_probability
from flatout.watch.health.history import read_history, renewed, write_history
from flatout.watch.health.signs import find_signs
from flatout.watch.health.xid_actions import advise

_DETECT_S = 60.0
_WEEK_S = 7 * 86_400.0


class NodeQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What `flatout watch node` was asked. Without `job_gpus`, nothing is weighed."""

    job_gpus: int | None
    node_gpus: int
    checkpoint_interval_s: float
    restart_s: float
    repair_s: float


class NodeSources(msgspec.Struct, frozen=True, kw_only=True):
    """What a node is judged by."""

    log: Path | None = None  # None: the log of this machine, together with its GPUs
    history: Path | None = None  # earlier readings of the GPUs, to which this one is added
    ledgers: tuple[Path, ...] = ()  # of jobs that ran on the node
    redfish: str | None = None  # address of its BMC
    redfish_credentials: Path | None = None
    ipmi: Path | None = None  # what `ipmitool sdr elist` printed


def read_own_gpus() -> tuple[Sequence[GpuHealth], str | None]:
    """Return the health of this machine's GPUs, and why it is unknown."""
    gpus = Gpus()
    return gpus.health(), gpus.problem


def judge_node(
    sources: NodeSources,
    question: NodeQuestion,
    *,
    read_gpus: Callable[[], tuple[Sequence[GpuHealth], str | None]] = read_own_gpus,
    read_ports: Callable[[], tuple[PortHealth, ...]] = read_port_health,
    now_s: float | None = None,
) -> NodeHealth:
    """Return the actions for the node. Raise InputError if its log, its history or a ledger cannot be read."""
    now_s = time.time() if now_s is None else now_s
    parsed = parse_kernel_log(bounded_log(_text_of(sources.log)))
    gpus = advise(parsed.xids)
    seen = {gpu.address for gpu in gpus}
    lost = [address for address in parsed.off_bus if address not in seen]
    gpus += tuple(
        GpuAdvice(address=address, action="drain", xid=None, num_xids=0, reason="the GPU has fallen off the bus")
        for address in lost
    )
    signs, problem = _signs(sources, read_gpus, read_ports, now_s)
    bmc = _read_bmc(sources)
    signs += tuple(sign for reading in bmc for sign in bmc_signs(reading))
    actions = {gpu.action for gpu in gpus} | {sign.action for sign in signs}
    return NodeHealth(
        gpus=gpus,
        needs_action=bool(actions & {"reset_gpu", "drain"}),
        is_excerpt=parsed.is_excerpt,
        cost=_cost(_evidence(actions, signs), question),
        signs=signs,
        unread=_unread(problem, bmc),
    )


def _signs(
    sources: NodeSources,
    read_gpus: Callable[[], tuple[Sequence[GpuHealth], str | None]],
    read_ports: Callable[[], tuple[PortHealth, ...]],
    now_s: float,
) -> tuple[tuple[NodeSign, ...], str | None]:
    """Return the signs, and why the GPUs are unknown. The log of another node says nothing of the GPUs here."""
    failures = sum(num_failures(path, now_s) for path in sources.ledgers)
    gpus: Sequence[GpuHealth] = ()
    ports: tuple[PortHealth, ...] = ()
    problem = None
    if sources.log is None or sources.history is not None:
        gpus, problem = read_gpus()
        ports = read_ports()
    now = HealthReading(unix_s=now_s, gpus=tuple(gpus), ports=ports)
    history = read_history(sources.history) if sources.history is not None else []
    signs = find_signs(now, history, failures)
    more = renewed(history, now)
    if sources.history is not None and more is not None:
        write_history(sources.history, more)
    return signs, problem


def _read_bmc(sources: NodeSources) -> list[BmcReading]:
    """Return what the node's BMC measures, from each given source."""
    readings = []
    if sources.redfish is not None:
        given = credentials(sources.redfish_credentials)
        readings.append(read_redfish(RedfishClient(sources.redfish, given)))
    if sources.ipmi is not None:
        readings.append(read_ipmi(sources.ipmi))
    return readings


def read_ipmi(path: Path) -> BmcReading:
    """Return what `ipmitool sdr elist` printed to a file. Raise InputError if it cannot be read."""
    return read_sdr_text(bounded_log(_read_text(path, "pass what `ipmitool sdr elist` prints as --ipmi")))


def _unread(gpu_problem: str | None, bmc: Sequence[BmcReading]) -> dict[str, str]:
    """Return the sources of which something is unknown, and why."""
    unread = {} if gpu_problem is None else {"gpus": gpu_problem}
    problems = [problem for reading in bmc for problem in reading.problems]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        unread["bmc"] = problems[0] + more
    return unread


def num_failures(ledger: Path, now_s: float) -> int:
    """Count a job's failures of the last week that were the machine's fault."""
    try:
        lines = read_bytes(ledger).splitlines()
    except OSError as error:
        raise InputError(f"{ledger} cannot be read: {(error.strerror or str(error)).lower()}") from error
    count = 0
    for raw in lines:
        try:
            line = decode_line(raw)
        except msgspec.DecodeError as error:
            raise InputError(f"{ledger} is not a ledger of `flatout run`: {error}") from error
        if isinstance(line, FailureLine):
            count += line.fault == "machine" and now_s - line.unix_s <= _WEEK_S
    return count


def _evidence(actions: set[NodeAction], signs: Sequence[NodeSign]) -> Evidence:
    if "drain" in actions:
        return "drain"
    if "reset_gpu" in actions:
        return "reset"
    return "warning" if signs else "none"


def _cost(evidence: Evidence, question: NodeQuestion) -> DrainCost | None:
    if question.job_gpus is None:
        return None
    costs = StopCosts(
        job_gpus=question.job_gpus,
        node_gpus=question.node_gpus,
        checkpoint_interval_s=question.checkpoint_interval_s,
        save_s=0.0,  # in the time to restart
        restart_s=question.restart_s,
        detect_s=_DETECT_S,
        repair_s=question.repair_s,
    )
    return drain_cost(failure_probability(evidence), costs)


def _text_of(log: Path | None) -> str:
    if log is None:
        output = read_kernel_log()
        if output.text is None:
            raise InputError(f"the kernel log cannot be read: {output.problem}", hint="run it as root, or pass --log")
        return output.text
    return _read_text(log, "pass what dmesg prints as --log")


def _read_text(path: Path, hint: str) -> str:
    try:
        return read_text(path, errors="replace")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}", hint=hint) from error
