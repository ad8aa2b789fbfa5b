"""Signs of a coming failure in the counters of a node's GPUs and network ports.

In: the readings of its GPUs and ports now and earlier, and the failures of its jobs. Out: `NodeSign`s with the action
that each calls for. Only what NVIDIA itself calls for an action leads to one; the others warn, because no published
rate says that they lead to a failure.

Sources: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/ (row remapping), NVML's recovery action. The limits of
the warnings are assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from flatout.records.gpu_health import GpuHealth, HealthReading, PortHealth
from flatout.records.watch import NodeAction, NodeSign

# Assumed limits of warnings: nothing is published from which on a GPU fails.
MOST_CORRECTED_PER_H = 100.0
MOST_UNCORRECTABLE_REMAPS_PER_DAY = 2.0
MOST_CORRECTABLE_REMAPS_PER_DAY = 2.0
MOST_PCIE_REPLAYS_PER_H = 60.0
MOST_NVLINK_REPLAYS_PER_H = 60.0
MOST_NVLINK_RECOVERIES_PER_DAY = 2.0
MOST_SYMBOL_ERRORS_PER_H = 100.0
MOST_LINK_RECOVERIES_PER_DAY = 2.0
MOST_LINK_DOWNS_PER_DAY = 2.0
LEAST_MARGIN_C = 5.0
BUSY_PERCENT, LEAST_PEERS = 90.0, 3
LEAST_CLOCK_SHARE = 0.9  # of the median of busy peers
MOST_NODE_FAILURES = 2  # by the machine's fault, in a week

_LEAST_SPAN_S = 3600.0  # for a rate
_HOUR_S, _DAY_S = 3600.0, 86_400.0
# NVML's recovery actions; 3 drains only the traffic between GPUs, and 5 concerns the domain of NVLink memory.
_RECOVERY: dict[int, tuple[NodeAction, str]] = {
    1: ("reset_gpu", "the driver asks for a reset of the GPU"),
    2: ("drain", "the driver asks for a reboot of the node"),
    3: ("reset_gpu", "the driver asks to stop peer-to-peer traffic and to reset the GPU"),
    4: ("drain", "the driver asks to drain the node and to reset the GPU"),
    5: ("drain", "the driver asks to recover the NVLink memory domain"),
    6: ("drain", "the driver asks for a reset of the bus"),
    7: ("drain", "the driver asks for a reboot of the system"),
}
_Rated = tuple[str, Callable[[GpuHealth], int | None], float, float, str]
_RATES: tuple[_Rated, ...] = (
    ("corrected_error_rate", lambda gpu: gpu.corrected_errors, _HOUR_S, MOST_CORRECTED_PER_H, "corrected errors/h"),
    (
        "uncorrectable_remap_rate",
        lambda gpu: gpu.uncorrectable_remaps,
        _DAY_S,
        MOST_UNCORRECTABLE_REMAPS_PER_DAY,
        "rows remapped for uncorrectable errors/day",
    ),
    (
        "correctable_remap_rate",
        lambda gpu: gpu.correctable_remaps,
        _DAY_S,
        MOST_CORRECTABLE_REMAPS_PER_DAY,
        "rows remapped for corrected errors/day",
    ),
    ("pcie_replay_rate", lambda gpu: gpu.pcie_replays, _HOUR_S, MOST_PCIE_REPLAYS_PER_H, "PCIe replays/h"),
    ("nvlink_replay_rate", lambda gpu: gpu.nvlink_replays, _HOUR_S, MOST_NVLINK_REPLAYS_PER_H, "NVLink replays/h"),
    (
        "nvlink_recovery_rate",
        lambda gpu: gpu.nvlink_recoveries,
        _DAY_S,
        MOST_NVLINK_RECOVERIES_PER_DAY,
        "NVLink recoveries/day",
    ),
)
_PORT_RATES: tuple[tuple[str, Callable[[PortHealth], float | None], float, float, str], ...] = (
    ("symbol_error_rate", lambda port: port.symbol_errors, _HOUR_S, MOST_SYMBOL_ERRORS_PER_H, "symbol errors/h"),
    (
        "link_recovery_rate",
        lambda port: port.link_recoveries,
        _DAY_S,
        MOST_LINK_RECOVERIES_PER_DAY,
        "recoveries of the link/day",
    ),
    ("link_down_rate", lambda port: port.link_downs, _DAY_S, MOST_LINK_DOWNS_PER_DAY, "times down/day"),
)


def find_signs(now: HealthReading, history: Sequence[HealthReading], num_failures: int = 0) -> tuple[NodeSign, ...]:
    """Return the signs on all GPUs, then those of the node. `num_failures`: of its jobs in a week, by its fault."""
    signs: list[NodeSign] = []
    for gpu in now.gpus:
        signs += _of_state(gpu)
        signs += _of_rates(gpu, now.unix_s, history)
    signs += _slow_clocks(now.gpus)
    for port in now.ports:
        signs += _of_port(port, now.unix_s, history)
    if num_failures > MOST_NODE_FAILURES:
        reason = f"{num_failures} failures by the machine's fault in a week"
        signs.append(NodeSign(gpu=None, kind="repeated_failures", action="none", value=num_failures, reason=reason))
    return tuple(signs)


def _of_state(gpu: GpuHealth) -> Iterator[NodeSign]:
    if gpu.has_remap_failed:
        yield _sign(gpu, "row_remap_failure", "drain", 1, "rows can no longer be remapped")
    if gpu.is_remap_pending:
        yield _sign(gpu, "row_remap_pending", "reset_gpu", 1, "a row waits for a reset to be remapped")
    if gpu.recovery_action in _RECOVERY:
        action, reason = _RECOVERY[gpu.recovery_action]
        yield _sign(gpu, "recovery_action", action, gpu.recovery_action, reason)
    is_busy = (gpu.busy_percent or 0.0) >= BUSY_PERCENT
    if gpu.margin_c is not None and gpu.margin_c < LEAST_MARGIN_C and is_busy:
        reason = f"{gpu.margin_c:.0f} C below the temperature at which clocks are lowered"
        yield _sign(gpu, "thermal_margin", "none", gpu.margin_c, reason)


def _of_rates(gpu: GpuHealth, now_s: float, history: Sequence[HealthReading]) -> Iterator[NodeSign]:
    for kind, count, per_s, most, unit in _RATES:
        rate = _rate(gpu, count, now_s, history, per_s)
        if rate is not None and rate > most:
            yield _sign(gpu, kind, "none", rate, f"{rate:.3g} {unit}")


def _rate(
    gpu: GpuHealth,
    count: Callable[[GpuHealth], int | None],
    now_s: float,
    history: Sequence[HealthReading],
    per_s: float,
) -> float | None:
    """Return the growth per `per_s` of a GPU's counter."""
    earlier = [
        (reading.unix_s, count(before)) for reading in history for before in reading.gpus if _is_same(before, gpu)
    ]
    return _growth(count(gpu), earlier, now_s, per_s)


def _growth(
    last: float | None, earlier: Sequence[tuple[float, float | None]], now_s: float, per_s: float
) -> float | None:
    """Return the growth per `per_s` over that time, or an hour at least; None without readings of then.

    A counter that fell was reset in between, and counts from 0.
    """
    span_s = max(per_s, _LEAST_SPAN_S)
    within = [(unix_s, count) for unix_s, count in earlier if _LEAST_SPAN_S <= now_s - unix_s <= span_s * 1.5]
    if not within or last is None:
        return None
    unix_s, first = min(within, key=lambda pair: abs(now_s - pair[0] - span_s))
    if first is None:
        return None
    grown = last if last < first else last - first
    return grown * per_s / (now_s - unix_s)


def _of_port(port: PortHealth, now_s: float, history: Sequence[HealthReading]) -> Iterator[NodeSign]:
    earlier = [
        (reading.unix_s, before)
        for reading in history
        for before in reading.ports
        if (before.device, before.port) == (port.device, port.port)
    ]
    for kind, count, per_s, most, unit in _PORT_RATES:
        counts = [(unix_s, count(before)) for unix_s, before in earlier]
        rate = _growth(count(port), counts, now_s, per_s)
        if rate is not None and rate > most:
            reason = f"{rate:.3g} {unit} at port {port.port} of {port.device}"
            yield NodeSign(gpu=None, kind=kind, action="none", value=rate, reason=reason)


def _is_same(before: GpuHealth, now: GpuHealth) -> bool:
    """Whether both are one card: a replaced card has other counters."""
    return before.uuid == now.uuid if now.uuid is not None else before.gpu == now.gpu


def _slow_clocks(gpus: Sequence[GpuHealth]) -> Iterator[NodeSign]:
    """Find busy GPUs whose clock is lower than that of busy GPUs of the same model."""
    busy = [gpu for gpu in gpus if (gpu.busy_percent or 0.0) >= BUSY_PERCENT and gpu.sm_clock_hz is not None]
    for gpu in busy:
        peers = [peer.sm_clock_hz or 0.0 for peer in busy if peer is not gpu and peer.model == gpu.model]
        if len(peers) < LEAST_PEERS:
            continue
        share = (gpu.sm_clock_hz or 0.0) / median(peers)
        if share < LEAST_CLOCK_SHARE:
            reason = f"its clock is {1 - share:.0%} below that of equally busy GPUs"
            yield _sign(gpu, "slow_clock", "none", share, reason)


def _sign(gpu: GpuHealth, kind: str, action: NodeAction, value: float, reason: str) -> NodeSign:
    return NodeSign(gpu=gpu.gpu, kind=kind, action=action, value=value, reason=reason)
