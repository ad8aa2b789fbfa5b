"""GPU counters have dcgm-exporter's names and units; ports have theirs; a rank has at most 150 series."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.keep.beating import Clock, Rank
from tests.watch.nvml import FakeNvml, h100

from flatout.inside.liveness.beat import fine_bucket
from flatout.inside.protocol import HEARTBEAT_FINE_FACTOR, HEARTBEAT_FINE_FIRST_NS
from flatout.probe.gpu_counters import COUNTERS, GpuCounters, read_gpu_counters
from flatout.probe.port_counters import read_port_counters
from flatout.records.watch import ExporterRequest, JobLabels
from flatout.watch.exporter.collector import Collector, HostSources
from flatout.watch.exporter.host_metrics import XidCounts
from flatout.watch.exporter.labels import job_labels

# dcgm-exporter's own list (etc/default-counters.csv and etc/dcp-metrics-included.csv), apart from DCGM_FI_PROF_*.
OF_DCGM = """
SM_CLOCK MEM_CLOCK MEMORY_TEMP GPU_TEMP POWER_USAGE TOTAL_ENERGY_CONSUMPTION PCIE_REPLAY_COUNTER GPU_UTIL
MEM_COPY_UTIL XID_ERRORS FB_FREE FB_USED FB_RESERVED UNCORRECTABLE_REMAPPED_ROWS CORRECTABLE_REMAPPED_ROWS
ROW_REMAP_FAILURE POWER_VIOLATION THERMAL_VIOLATION SYNC_BOOST_VIOLATION BOARD_LIMIT_VIOLATION
LOW_UTIL_VIOLATION RELIABILITY_VIOLATION ECC_SBE_VOL_TOTAL ECC_DBE_VOL_TOTAL ECC_SBE_AGG_TOTAL
ECC_DBE_AGG_TOTAL NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL NVLINK_CRC_DATA_ERROR_COUNT_TOTAL
NVLINK_REPLAY_ERROR_COUNT_TOTAL NVLINK_RECOVERY_ERROR_COUNT_TOTAL
"""


def gpus(num_gpus: int) -> list[GpuCounters]:
    return read_gpu_counters(FakeNvml(), [h100(index) for index in range(num_gpus)])


def adapter(folder: Path, name: str, **counters: int) -> None:
    port = folder / "infiniband" / name / "ports" / "1"
    for kind in ("counters", "hw_counters"):
        (port / kind).mkdir(parents=True)
    for counter, value in counters.items():
        kind = "hw_counters" if counter in ("out_of_sequence", "packet_seq_err", "roce_adp_retrans") else "counters"
        (port / kind / counter).write_text(f"{value}\n")


def test_counters_have_the_names_and_units_of_dcgm_exporter() -> None:
    (gpu,) = gpus(1)
    assert {counter.name for counter in COUNTERS} <= {f"DCGM_FI_DEV_{name}" for name in OF_DCGM.split()}
    assert len(gpu.values) == len(COUNTERS), "the stand-in gives each counter"
    expected = {
        "SM_CLOCK": 1755, "FB_USED": 79388, "FB_RESERVED": 612, "POWER_USAGE": 642.5,
        "TOTAL_ENERGY_CONSUMPTION": 9_876_543_210,
        "CORRECTABLE_REMAPPED_ROWS": 2, "UNCORRECTABLE_REMAPPED_ROWS": 1, "ROW_REMAP_FAILURE": 0,
        "ECC_SBE_AGG_TOTAL": 50, "ECC_DBE_AGG_TOTAL": 1, "ECC_SBE_VOL_TOTAL": 5, "THERMAL_VIOLATION": 2e9,
        "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 7,
    }  # fmt: skip
    assert {name: gpu.values[f"DCGM_FI_DEV_{name}"] for name in expected} == expected
    assert (gpu.device, gpu.pci_bus_id, gpu.model) == ("nvidia0", "00000000:1B:00.0", "NVIDIA H100 80GB HBM3")


def test_a_counter_that_the_driver_does_not_give_is_absent_and_not_0() -> None:
    handle = h100()
    del handle["nvmlDeviceGetRemappedRows"], handle["nvmlDeviceGetPowerUsage"]
    (gpu,) = read_gpu_counters(FakeNvml(), [handle])
    missing = {counter.name for counter in COUNTERS} - gpu.values.keys()
    names = {"CORRECTABLE_REMAPPED_ROWS", "UNCORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_FAILURE", "POWER_USAGE"}
    assert missing == {f"DCGM_FI_DEV_{name}" for name in names}


def test_an_old_driver_counts_reserved_memory_as_used() -> None:
    handle = h100()
    del handle["nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2]
    (gpu,) = read_gpu_counters(FakeNvml(), [handle])
    assert gpu.values["DCGM_FI_DEV_FB_USED"] == 80000
    assert "DCGM_FI_DEV_FB_RESERVED" not in gpu.values


def test_ports_of_adapters_count_bytes_and_virtual_interfaces_are_left_out(tmp_path: Path) -> None:
    adapter(tmp_path, "mlx5_0", port_rcv_data=250, port_xmit_data=1000, link_downed=2, out_of_sequence=9)
    for name, is_physical in (("eth0", True), ("docker0", False)):
        statistics = tmp_path / "net" / name / "statistics"
        statistics.mkdir(parents=True)
        (statistics / "rx_bytes").write_text("77\n")
        if is_physical:
            (tmp_path / "net" / name / "device").mkdir()
    ethernet, infiniband = read_port_counters(tmp_path)
    assert (ethernet.device, ethernet.values) == ("eth0", {"flatout_port_received_bytes": 77})
    assert (infiniband.device, infiniband.port) == ("mlx5_0", "1")
    assert infiniband.values == {
        "flatout_port_received_bytes": 1000,
        "flatout_port_transmitted_bytes": 4000,
        "flatout_port_link_downs": 2,
        "flatout_port_out_of_sequence": 9,
    }
    assert read_port_counters(tmp_path / "nothing") == []


def test_counters_of_xids_exist_at_0_and_a_rank_has_at_most_150_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_ranks = 8
    clock = Clock()
    for number in range(num_ranks):
        rank = Rank(tmp_path / "attempt-0", number, num_ranks, clock, monkeypatch)
        for step in range(40):
            rank.spends("compute", 10**8 + step * 10**6)
            rank.steps()
        rank.beat.is_on(bytes((0, 0, 0, number + 1, *bytes(12))))
        rank.beat.exchanged(11, 10**7, per_step=1, num_ranks=num_ranks)
    for number in range(num_ranks):
        names = ("port_rcv_data", "port_xmit_data", "port_rcv_errors", "port_xmit_discards", "symbol_error")
        counters = dict.fromkeys((*names, "link_downed", "link_error_recovery", "roce_adp_retrans"), 1)
        adapter(tmp_path, f"mlx5_{number}", **counters, out_of_sequence=1, packet_seq_err=1)
    xids: list[dict[str, int]] = []
    request = ExporterRequest(
        ledger=str(tmp_path / "none"), state=str(tmp_path), address="", port=0,
        labels=JobLabels(job="train", job_id="7", host="n1"),
    )  # fmt: skip
    registry = CollectorRegistry(auto_describe=False)
    sources = HostSources(
        gpus=lambda: gpus(num_ranks), ports=lambda: read_port_counters(tmp_path), xids=XidCounts(lambda: xids)
    )
    registry.register(Collector(request, sources))  # type: ignore[arg-type, unused-ignore]
    samples = [sample for family in registry.collect() for sample in family.samples]
    of_xids = [sample for sample in samples if sample.name == "flatout_xid_errors_total"]
    assert {(sample.labels["rank"], sample.labels["class"], sample.value) for sample in of_xids} == {
        (str(rank), name, 0) for rank in range(num_ranks) for name in ("job", "recorded", "machine")
    }
    assert 100 < len(samples) / num_ranks <= 150
    xids[:] = [{"gpu": 3, "number": 79}, {"gpu": 3, "number": 31}, {"gpu": 3, "number": 63}]
    page = generate_latest(registry).decode()
    line = next(line for line in page.splitlines() if 'class="machine"' in line and 'gpu="3"' in line)
    assert line.endswith(" 1.0") and 'hostname="n1"' in line and 'job="train"' in line and 'rank="3"' in line


@pytest.mark.parametrize(
    ("environment", "cgroup", "job", "job_id"),
    [
        ({}, "0::/user.slice\n", "train.py", ""),
        ({"FLATOUT_JOB": "llama", "SLURM_JOB_ID": "812"}, "", "llama", "812"),
        ({"SLURM_JOB_NAME": "pretrain", "SLURM_JOB_ID": "812", "RAY_JOB_ID": "02000000"}, "", "pretrain", "812"),
        ({"RAY_JOB_ID": "02000000"}, "", "train.py", "02000000"),
        (
            {},
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8f7c1a2b_1111_2222_3333_444455556666.slice/x\n",
            "train.py",
            "8f7c1a2b-1111-2222-3333-444455556666",
        ),
    ],
)
def test_a_job_is_named_by_its_user_or_scheduler(
    environment: dict[str, str], cgroup: str, job: str, job_id: str, tmp_path: Path
) -> None:
    (tmp_path / "cgroup").write_text(cgroup)
    labels = job_labels("train.py", environment, tmp_path / "cgroup")
    assert (labels.job, labels.job_id) == (job, job_id)


@pytest.mark.parametrize("took_ns", [1, 10**6, 10**6 + 1, 123_456_789, 5 * 10**8, 10**12])
def test_a_fine_bucket_ends_at_or_above_the_time_and_at_most_5_percent_above(took_ns: int) -> None:
    bucket = fine_bucket(took_ns)
    end_ns = HEARTBEAT_FINE_FIRST_NS * HEARTBEAT_FINE_FACTOR**bucket
    assert took_ns <= end_ns * (1 + 1e-9)
    assert bucket == 0 or took_ns > end_ns / HEARTBEAT_FINE_FACTOR * (1 - 1e-9)
