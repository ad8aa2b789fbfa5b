"""Hosts are compared in every setting that a capture holds: each differs on one of five hosts here."""

from __future__ import annotations

import msgspec
import pytest
from tests.doctor.samples import rdma_port, smi, sysfs

from flatout.doctor.compare import compare_snapshots
from flatout.records.doctor import HostsReport
from flatout.records.snapshot import Output, Snapshot
from flatout.report.doctor_hosts_html import hosts_html
from flatout.report.doctor_text import hosts_text
from flatout.report.terminal import TextStyle

PACKAGES = "torch==2.7.1\nnvidia-nccl-cu13==2.28.3\ndeepspeed==0.17\ncuda: Optional[str] = '13.0'\n"
MEMINFO = "MemTotal: 1000000000 kB\nMemAvailable: 800000000 kB\nHugePages_Total: 0\nHugepagesize: 2048 kB\n"
LIMITS = (
    "Max locked memory         unlimited            unlimited            bytes\nMax open files  1048576 1048576 files\n"
)
FILES = {
    "/proc/meminfo": MEMINFO,
    "/proc/self/limits": LIMITS,
    "/proc/loadavg": "1.00 1.00 1.00 1/100 1",
    "/proc/cpuinfo": "".join(f"processor\t: {cpu}\n" for cpu in range(64)),
    "/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=0a1b2c3d-0000-0000-0000-000000000000 ro iommu=pt",
    "/proc/sys/kernel/osrelease": "6.8.0",
    "/proc/sys/kernel/numa_balancing": "0",
    "/proc/sys/net/ipv4/tcp_rmem": "4096 87380\t16777216",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
    "/sys/block/nvme0n1/queue/read_ahead_kb": "128",
    "/sys/kernel/iommu_groups/1/type": "identity",
    "/sys/fs/cgroup/cpu.max": "max 100000",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64",
}
OUTPUTS = {"python packages": PACKAGES, "df -P -k": "Filesystem\ntmpfs 67108864 0 67108864 0% /dev/shm\n"}


def host(
    number: int, files: dict[str, str] | None = None, outputs: dict[str, str] | None = None, **variables: str
) -> Snapshot:
    """A host whose devices have names of their own."""
    net = sysfs(f"/sys/class/net/enp{number}s0", mtu="9000", speed="400000", operstate="up")
    texts = {name: Output(text=text) for name, text in (OUTPUTS | (outputs or {})).items()}
    return Snapshot(
        host=f"node-{number}",
        files=FILES | net | rdma_port(f"mlx5_{number}") | (files or {}),
        outputs=texts | smi().outputs,
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1", "RANK": str(number)} | variables,
    )


def compared(odd: Snapshot) -> HostsReport:
    return compare_snapshots([*(host(number) for number in range(4)), odd])


CHANGED = [
    ("NCCL", {}, {"python packages": PACKAGES.replace("2.28.3", "2.27.5")}, {}),
    ("NCCL", {}, {"python packages": PACKAGES.replace("cu13", "cu14")}, {}),
    ("deepspeed", {}, {"python packages": PACKAGES.replace("0.17", "0.16")}, {}),
    ("CUDA of torch", {}, {"python packages": PACKAGES.replace("13.0", "12.9")}, {}),
    ("MTU", {"/sys/class/net/enp9s0/mtu": "1500"}, {}, {}),
    ("speeds of network interfaces", {"/sys/class/net/enp9s0/speed": "100000"}, {}, {}),
    ("huge pages", {"/proc/meminfo": MEMINFO.replace("Total: 0\n", "Total: 512\n")}, {}, {}),
    ("transparent huge pages", {"/sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never"}, {}, {}),
    ("kernel.numa_balancing", {"/proc/sys/kernel/numa_balancing": "1"}, {}, {}),
    ("net.ipv4.tcp_rmem", {"/proc/sys/net/ipv4/tcp_rmem": "4096 87380 6291456"}, {}, {}),
    ("kernel parameters", {"/proc/cmdline": FILES["/proc/cmdline"].replace(" iommu=pt", "")}, {}, {}),
    ("memlock limit", {"/proc/self/limits": LIMITS.replace("unlimited", "65536")}, {}, {}),
    ("limit on open files", {"/proc/self/limits": LIMITS.replace("1048576", "1024")}, {}, {}),
    ("clock source", {"/sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet"}, {}, {}),
    ("CPU frequency governor", {"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave"}, {}, {}),
    ("read-ahead of the disks in KiB", {"/sys/block/nvme0n1/queue/read_ahead_kb": "4096"}, {}, {}),
    ("IOMMU", {"/sys/kernel/iommu_groups/1/type": "DMA-FQ"}, {}, {}),
    ("CPU quota", {"/sys/fs/cgroup/cpu.max": "800000 100000"}, {}, {}),
    ("size of /dev/shm", {}, {"df -P -k": "Filesystem\ntmpfs 65536 0 65536 0% /dev/shm\n"}, {}),
    (
        "driver's kernel module",
        {"/proc/driver/nvidia/version": "NVIDIA UNIX x86_64 Kernel Module"},
        {},
        {},
    ),
    ("rates of RDMA ports", {"/sys/class/infiniband/mlx5_9/ports/1/rate": "200 Gb/sec (2X NDR)"}, {}, {}),
    ("firmware of RDMA devices", {"/sys/class/infiniband/mlx5_9/fw_ver": "28.43.2026"}, {}, {}),
    ("NCCL settings", {}, {}, {"NCCL_P2P_LEVEL": "LOC"}),
    ("CUDA_DEVICE_MAX_CONNECTIONS", {}, {}, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
    ("OMP_NUM_THREADS", {}, {}, {"OMP_NUM_THREADS": "4"}),
]


@pytest.mark.parametrize(("fact", "files", "outputs", "variables"), CHANGED, ids=[changed[0] for changed in CHANGED])
def test_a_setting_of_one_host_is_a_difference(
    fact: str, files: dict[str, str], outputs: dict[str, str], variables: dict[str, str]
) -> None:
    report = compared(host(9, files, outputs, **variables))
    found = {difference.fact: difference.hosts for difference in report.differences if difference.check is None}
    assert found == {fact: ("node-9",)}


def test_hosts_that_differ_in_the_names_of_their_devices_and_in_their_ranks_are_alike() -> None:
    report = compared(host(9))
    assert report.differences == ()
    assert next(fact.usual for fact in report.compared if fact.fact == "MTU") == "9000 x 1 (enp0s0)"


@pytest.mark.parametrize(("load", "is_odd"), [("2.00", False), ("17.90", False), ("18.10", True), ("64.00", True)])
def test_the_load_is_a_range_and_only_much_of_it_is_a_difference(load: str, is_odd: bool) -> None:
    """A load of 1 on 64 CPUs is usual, 0.016 per CPU; by 0.016 + 0.25 per CPU more, a host differs from the others."""
    report = compared(host(9, {"/proc/loadavg": f"{load} 1.00 1.00 1/100 1"}))
    assert [difference.fact for difference in report.differences] == (["load per CPU"] if is_odd else [])
    shown = next(fact.usual for fact in report.compared if fact.fact == "load per CPU")
    assert shown == f"0.02 (0.02 to {float(load) / 64:.2f})"


def test_a_range_is_shown_for_two_hosts_too() -> None:
    busy = host(1, {"/proc/loadavg": "32.00 1.00 1.00 1/100 1"})
    report = compare_snapshots([host(0), busy])
    assert next(fact.usual for fact in report.compared if fact.fact == "load per CPU") == "0.26 (0.02 to 0.50)"
    assert "load per CPU: 0.26 (0.02 to 0.50)" in hosts_text(report, style=TextStyle())
    assert report.differences == ()


def test_two_hosts_with_other_power_limits_differ() -> None:
    lowered = smi(*[{"GPU Power Readings/Current Power Limit": "500.00 W"}] * 4).outputs
    odd = msgspec.structs.replace(host(1), outputs=host(1).outputs | lowered)
    found = {difference.fact: difference.found for difference in compare_snapshots([host(0), odd]).differences}
    assert found["power limit of the GPUs"] == {"node-0": "700 W", "node-1": "500 W"}


@pytest.mark.parametrize(("available", "is_odd"), [(400_000_001, False), (399_999_999, True)])
def test_available_memory_is_a_range_and_half_of_the_usual_is_a_difference(available: int, is_odd: bool) -> None:
    report = compared(host(9, {"/proc/meminfo": MEMINFO.replace("800000000", str(available))}))
    assert [difference.fact for difference in report.differences] == (["available memory"] if is_odd else [])


def test_what_a_check_found_on_one_host_is_the_title_of_the_difference() -> None:
    fault = "[ 7.0] NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=python, Timeout after 6s of waiting for RPC response\n"
    quiet = {"kernel log": "[ 0.0] Linux version 6.8.0 (builder)\n"}
    hosts = [host(number, outputs=quiet) for number in range(4)]
    report = compare_snapshots([*hosts, host(9, outputs={"kernel log": quiet["kernel log"] + fault})])
    text = hosts_text(report, style=TextStyle(width=200))
    assert "  fail    gpu-xid: Xid 119 on 0000:9b:00 (GSP RPC timeout)" in text
    assert "(gpu-xid: Xid 119 on 0000:9b:00 (GSP RPC timeout);" in text  # of that host
    assert '<p class="title">Xid 119 on 0000:9b:00 (GSP RPC timeout)</p>' in hosts_html(report, ["flatout"])
