"""Signs in a node's counters: what NVIDIA calls for leads to an action, and what is only unusual warns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pynvml
import pytest
from tests.watch.nvml import FakeNvml, h100

from flatout.errors import InputError
from flatout.keep.ledger import LedgerFile
from flatout.probe.gpu_health import read_gpu_health
from flatout.probe.port_counters import read_port_health
from flatout.records.gpu_health import GpuHealth, HealthReading, PortHealth
from flatout.watch.health.history import KEPT_S, LEAST_APART_S, read_history, renewed, write_history
from flatout.watch.health.node import NodeQuestion, NodeSources, judge_node
from flatout.watch.health.signs import (
    LEAST_CLOCK_SHARE,
    LEAST_MARGIN_C,
    LEAST_PEERS,
    MOST_CORRECTABLE_REMAPS_PER_DAY,
    MOST_CORRECTED_PER_H,
    MOST_LINK_DOWNS_PER_DAY,
    MOST_LINK_RECOVERIES_PER_DAY,
    MOST_NODE_FAILURES,
    MOST_NVLINK_RECOVERIES_PER_DAY,
    MOST_NVLINK_REPLAYS_PER_H,
    MOST_PCIE_REPLAYS_PER_H,
    MOST_SYMBOL_ERRORS_PER_H,
    MOST_UNCORRECTABLE_REMAPS_PER_DAY,
    find_signs,
)

HOUR_S, DAY_S, NOW_S = 3600.0, 86_400.0, 1e9
WELL = GpuHealth(
    gpu=0, uuid="GPU-1", model="H100", corrected_errors=5, uncorrected_errors=0, correctable_remaps=1,
    uncorrectable_remaps=1, is_remap_pending=False, has_remap_failed=False, pcie_replays=3, margin_c=30,
    nvlink_replays=7, nvlink_recoveries=0,
    busy_percent=98, sm_clock_hz=1.755e9, recovery_action=0,
)  # fmt: skip


def found(gpu: GpuHealth, before: GpuHealth | None = None, ago_s: float = HOUR_S) -> dict[str, str]:
    """Return the signs and their actions. `before` is the GPU some time ago."""
    history = [] if before is None else [HealthReading(unix_s=NOW_S - ago_s, gpus=(before,))]
    return {sign.kind: sign.action for sign in find_signs(HealthReading(unix_s=NOW_S, gpus=(gpu,)), history)}


def changed(**values: Any) -> GpuHealth:
    return msgspec.structs.replace(WELL, **values)


@pytest.mark.parametrize(
    ("values", "signs"),
    [
        ({}, {}),
        ({"has_remap_failed": True}, {"row_remap_failure": "drain"}),
        ({"is_remap_pending": True}, {"row_remap_pending": "reset_gpu"}),
        ({"recovery_action": 1}, {"recovery_action": "reset_gpu"}),
        ({"recovery_action": 4}, {"recovery_action": "drain"}),
        ({"recovery_action": 99}, {}),
        ({"margin_c": LEAST_MARGIN_C - 1}, {"thermal_margin": "none"}),
        ({"margin_c": LEAST_MARGIN_C}, {}),
        ({"margin_c": 1, "busy_percent": 80}, {}),
        ({"has_remap_failed": None, "margin_c": None, "recovery_action": None}, {}),
    ],
)
def test_the_state_of_a_gpu(values: dict[str, Any], signs: dict[str, str]) -> None:
    assert found(changed(**values)) == signs


@pytest.mark.parametrize(
    ("counter", "kind", "span_s", "most"),
    [
        ("corrected_errors", "corrected_error_rate", HOUR_S, MOST_CORRECTED_PER_H),
        ("pcie_replays", "pcie_replay_rate", HOUR_S, MOST_PCIE_REPLAYS_PER_H),
        ("nvlink_replays", "nvlink_replay_rate", HOUR_S, MOST_NVLINK_REPLAYS_PER_H),
        ("nvlink_recoveries", "nvlink_recovery_rate", DAY_S, MOST_NVLINK_RECOVERIES_PER_DAY),
        ("correctable_remaps", "correctable_remap_rate", DAY_S, MOST_CORRECTABLE_REMAPS_PER_DAY),
        ("uncorrectable_remaps", "uncorrectable_remap_rate", DAY_S, MOST_UNCORRECTABLE_REMAPS_PER_DAY),
    ],
)
def test_a_rate_beyond_its_limit_warns(counter: str, kind: str, span_s: float, most: float) -> None:
    first = getattr(WELL, counter)
    for more, is_found in ((most, False), (most + 1, True)):
        assert found(changed(**{counter: first + int(more)}), WELL, span_s) == ({kind: "none"} if is_found else {})
    assert found(changed(**{counter: first + 10**6}), WELL, span_s * 2) == {}, "too long ago"
    assert found(changed(**{counter: first + 10**6}), WELL, 60) == {}, "too short a time for a rate"
    other = msgspec.structs.replace(WELL, uuid="GPU-2")
    assert found(changed(**{counter: first + 10**6}), other, span_s) == {}, "another card was in this slot"
    assert found(changed(**{counter: None}), WELL, span_s) == {}


@pytest.mark.parametrize(
    ("counter", "kind", "span_s", "most"),
    [
        ("symbol_errors", "symbol_error_rate", HOUR_S, MOST_SYMBOL_ERRORS_PER_H),
        ("link_recoveries", "link_recovery_rate", DAY_S, MOST_LINK_RECOVERIES_PER_DAY),
        ("link_downs", "link_down_rate", DAY_S, MOST_LINK_DOWNS_PER_DAY),
    ],
)
def test_errors_of_a_port_warn_and_those_of_another_port_do_not(
    counter: str, kind: str, span_s: float, most: float
) -> None:
    port = PortHealth(device="mlx5_0", port="1", symbol_errors=3, link_recoveries=0, link_downs=1)
    first = getattr(port, counter)

    def signs(now: PortHealth, before: PortHealth = port) -> list[str]:
        history = [HealthReading(unix_s=NOW_S - span_s, gpus=(), ports=(before,))]
        found = find_signs(HealthReading(unix_s=NOW_S, gpus=(), ports=(now,)), history)
        assert all(sign.action == "none" and "port 1 of mlx5_0" in sign.reason for sign in found)
        return [sign.kind for sign in found]

    assert signs(msgspec.structs.replace(port, **{counter: first + most})) == []
    worse = msgspec.structs.replace(port, **{counter: first + most + 1})
    assert signs(worse) == [kind]
    assert signs(worse, msgspec.structs.replace(port, device="mlx5_1")) == []
    assert signs(msgspec.structs.replace(port, **{counter: None})) == []


def test_the_health_of_ports_is_read_from_the_kernel(tmp_path: Path) -> None:
    counters = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1" / "counters"
    counters.mkdir(parents=True)
    (counters / "symbol_error").write_text("12\n")
    (counters / "link_downed").write_text("2\n")
    (port,) = read_port_health(tmp_path)
    assert port == PortHealth(device="mlx5_0", port="1", symbol_errors=12, link_downs=2)
    assert read_port_health(tmp_path / "none") == ()


def test_a_counter_that_was_reset_counts_from_0() -> None:
    before = changed(corrected_errors=10**6)
    assert found(changed(corrected_errors=50), before) == {}
    assert found(changed(corrected_errors=500), before) == {"corrected_error_rate": "none"}


def slow_clocks(share: float, num_peers: int, busy_percent: float = 98) -> list[int | None]:
    peers = [changed(gpu=number, uuid=f"GPU-{number}") for number in range(1, num_peers + 1)]
    slow = changed(sm_clock_hz=1.755e9 * share, busy_percent=busy_percent)
    return [sign.gpu for sign in find_signs(HealthReading(unix_s=NOW_S, gpus=(slow, *peers)), [])]


def test_a_clock_is_compared_with_those_of_equally_busy_gpus() -> None:
    assert slow_clocks(LEAST_CLOCK_SHARE - 0.01, LEAST_PEERS) == [0]
    assert slow_clocks(LEAST_CLOCK_SHARE + 0.01, LEAST_PEERS) == []
    assert slow_clocks(0.5, LEAST_PEERS - 1) == []
    assert slow_clocks(0.5, LEAST_PEERS, busy_percent=10) == []


def test_health_is_read_from_nvml_and_what_it_lacks_is_unknown() -> None:
    handle = h100() | {
        "nvmlDeviceGetMarginTemperature": 12,
        "nvmlDeviceGetRemappedRows": (2, 1, 1, 0),
        pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: 1,
    }
    full, empty = read_gpu_health(FakeNvml(), [handle, {}])
    assert (full.corrected_errors, full.correctable_remaps, full.uncorrectable_remaps) == (5, 2, 1)
    assert full.is_remap_pending is True and full.has_remap_failed is False
    assert (full.margin_c, full.sm_clock_hz, full.busy_percent, full.recovery_action) == (12, 1.755e9, 97, 1)
    assert empty == GpuHealth(gpu=1)


def test_a_history_keeps_a_week_and_one_reading_per_interval(tmp_path: Path) -> None:
    readings = [HealthReading(unix_s=NOW_S - age_s, gpus=(WELL,)) for age_s in (KEPT_S + 1, KEPT_S - 1)]
    now = HealthReading(unix_s=NOW_S, gpus=(WELL,))
    assert renewed(readings, now) == [readings[1], now]
    assert renewed([HealthReading(unix_s=NOW_S - LEAST_APART_S + 1, gpus=(WELL,))], now) is None
    assert renewed([], msgspec.structs.replace(now, gpus=())) is None
    with_port = msgspec.structs.replace(now, gpus=(), ports=(PortHealth(device="mlx5_0", port="1"),))
    assert renewed([], with_port) == [with_port]
    path = tmp_path / "history.jsonl"
    assert read_history(path) == []
    write_history(path, [now])
    assert read_history(path) == [now] and path.stat().st_mode & 0o077 == 0
    path.write_text('{"unix_s": "yesterday"}\n')
    with pytest.raises(InputError, match="not a history of `flatout watch node`"):
        read_history(path)


QUESTION = NodeQuestion(job_gpus=None, node_gpus=8, checkpoint_interval_s=3600, restart_s=300, repair_s=0)


def test_each_check_adds_its_reading_and_rates_need_an_hour(tmp_path: Path) -> None:
    (tmp_path / "dmesg").write_text("[    0.000000] Linux version 6.8.0\n")
    sources = NodeSources(log=tmp_path / "dmesg", history=tmp_path / "history")

    def check(errors: int, after_s: float) -> list[str]:
        health = judge_node(
            sources, QUESTION, read_gpus=lambda: ([changed(corrected_errors=errors)], None), now_s=NOW_S + after_s
        )
        return [sign.kind for sign in health.signs]

    assert check(0, 0) == [] and check(100_000, 600) == []
    assert check(100_000, HOUR_S + 1) == ["corrected_error_rate"]


@pytest.mark.parametrize(("num", "is_found"), [(MOST_NODE_FAILURES, False), (MOST_NODE_FAILURES + 1, True)])
def test_repeated_failures_by_the_machines_fault_warn(num: int, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "dmesg").write_text("[    0.000000] Linux version 6.8.0\n")
    ledger = LedgerFile(tmp_path / "ledger.jsonl")
    for fault in ["machine"] * num + ["user"] * 5:
        ledger.write("failure", fault=fault, says="x")
    ledger.close()
    sources = NodeSources(log=tmp_path / "dmesg", ledgers=(tmp_path / "ledger.jsonl",))
    health = judge_node(sources, QUESTION, read_gpus=lambda: ([], "no driver"))
    assert bool(health.signs) is is_found and not health.needs_action
    with pytest.raises(InputError, match="cannot be read"):
        judge_node(NodeSources(log=tmp_path / "dmesg", ledgers=(tmp_path / "none",)), QUESTION)


def test_a_machine_without_a_driver_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SimpleNamespace(text="[    0.000000] Linux version 6.8.0\n", problem=None)
    monkeypatch.setattr("flatout.watch.health.node.read_kernel_log", lambda: log)
    health = judge_node(NodeSources(), QUESTION, read_gpus=lambda: ([], "no driver"))
    assert health.unread == {"gpus": "no driver"}
