"""Checks of software, host, network and storage: each on a good and a bad reading, and without one."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doctor.samples import (
    ADDRESSES,
    HEALTHY_MATRIX,
    kernel_log,
    lspci_bridge,
    lspci_gpu,
    nccl_log,
    printed,
    rdma_port,
    result,
    smi,
    sysfs,
)

from flatout.doctor.checks import CHECKS
from flatout.doctor.machine import BMC_SENSORS
from flatout.records.bmc import BmcReading, BmcSensor
from flatout.records.snapshot import Output, Snapshot

NO_RDMA = {"/sys/class/infiniband": "no such file or directory"}
NO_BUS = {"/sys/bus/pci/devices": "empty"}


def env(**variables: str) -> Snapshot:
    return Snapshot(environment=variables, problems=NO_RDMA | NO_BUS)


ENVIRONMENT: list[tuple[str, dict[str, str], str]] = [
    ("nccl-peer-to-peer", {"NCCL_P2P_DISABLE": "1"}, "fail"),
    ("nccl-peer-to-peer", {"NCCL_P2P_LEVEL": "LOC"}, "fail"),
    ("nccl-peer-to-peer", {"NCCL_P2P_LEVEL": "NVL"}, "ok"),
    ("nccl-shared-memory", {"NCCL_SHM_DISABLE": "1"}, "warn"),
    ("nccl-infiniband", {"NCCL_IB_DISABLE": "1"}, "info"),  # there is no RDMA device
    ("nccl-infiniband", {"NCCL_IB_DISABLE": "0"}, "ok"),
    ("nccl-gpu-direct", {"NCCL_NET_GDR_LEVEL": "LOC"}, "fail"),
    ("nccl-gpu-direct", {"NCCL_NET_GDR_READ": "0"}, "info"),
    ("nccl-forced-choice", {"NCCL_ALGO": "Ring"}, "warn"),
    ("nccl-unsafe-protocol", {"NCCL_PROTO": "Simple,LL128"}, "fail"),
    ("nccl-unsafe-protocol", {"NCCL_PROTO": "^LL128"}, "ok"),
    ("nccl-debug-output", {"NCCL_DEBUG": "TRACE"}, "warn"),
    ("nccl-debug-output", {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL"}, "warn"),
    ("nccl-debug-output", {"NCCL_DEBUG": "WARN"}, "ok"),
    ("nccl-library-override", {"LD_PRELOAD": "/opt/lib/libnccl.so.2"}, "warn"),
    ("cuda-blocking-launch", {"CUDA_LAUNCH_BLOCKING": "1"}, "fail"),
    ("cuda-tools-left", {"CUDA_INJECTION64_PATH": "/opt/tool.so"}, "warn"),
    ("cuda-tf32-override", {"NVIDIA_TF32_OVERRIDE": "0"}, "warn"),
    ("cuda-one-queue", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "info"),
    ("cuda-visible-devices", {"CUDA_VISIBLE_DEVICES": "0,0"}, "fail"),
    ("cuda-visible-devices", {"CUDA_VISIBLE_DEVICES": ""}, "info"),
    ("torch-debug-mode", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "warn"),
    ("torch-allocator", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "fail"),
    ("torch-compile-disabled", {"TORCH_COMPILE_DISABLE": "1"}, "warn"),
]


@pytest.mark.parametrize(("check_id", "variables", "status"), ENVIRONMENT)
def test_a_variable_is_judged_and_a_missing_environment_is_unknown(
    check_id: str, variables: dict[str, str], status: str
) -> None:
    assert result(check_id, env(**variables)).status == status
    assert result(check_id, env()).status == "ok"
    assert result(check_id, Snapshot()).status == "unknown"


def test_a_log_that_does_not_name_a_variable_does_not_prove_it_unset() -> None:
    assert result("nccl-peer-to-peer", nccl_log("Using network IB")).status == "unknown"
    found = result("nccl-peer-to-peer", nccl_log("NCCL_P2P_LEVEL set by environment to LOC"))
    assert (found.status, "the NCCL log" in found.reason) == ("fail", True)


def test_a_file_of_settings_counts_and_the_environment_goes_before_it() -> None:
    conf = {"/etc/nccl.conf": "NCCL_P2P_DISABLE=1\n"}
    assert result("nccl-peer-to-peer", Snapshot(files=conf, environment={})).status == "fail"
    assert result("nccl-peer-to-peer", Snapshot(files=conf, environment={"NCCL_P2P_DISABLE": "0"})).status == "ok"


def test_named_interfaces_and_devices_must_be_there() -> None:
    net = sysfs("/sys/class/net/eth0", mtu="1500") | sysfs("/sys/class/net/docker0", mtu="1500")
    for value, status in (
        ("eth", "ok"),
        ("=eth0", "ok"),
        ("=eth", "fail"),
        ("ib", "fail"),
        ("docker", "warn"),
        ("^lo", "ok"),
    ):
        snapshot = Snapshot(files=net, environment={"NCCL_SOCKET_IFNAME": value})
        assert result("nccl-named-interface", snapshot).status == status, value
    ports = rdma_port("mlx5_0") | rdma_port("mlx5_1")
    for value, status in (("mlx5", "info"), ("=mlx5_0:1", "info"), ("irdma", "fail"), ("^mlx5", "fail")):
        assert (
            result("nccl-named-device", Snapshot(files=ports, environment={"NCCL_IB_HCA": value})).status == status
        ), value


def test_cuda_of_torch_and_of_the_driver() -> None:
    for built, status in (("12.4", "ok"), ("11.8", "ok"), ("12.8", "info"), ("13.0", "fail")):
        packages = Output(text=f"torch==2.6.0\ncuda: Optional[str] = '{built}'\n")
        assert result("cuda-driver", Snapshot(outputs=smi().outputs | {"python packages": packages})).status == status
    assert result("cuda-driver", smi()).status == "unknown"


def test_the_module_and_the_libraries_of_the_driver() -> None:
    for version, status in (("550.54.15", "ok"), ("535.104.05", "fail")):
        module = {"/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue\n"}
        assert result("driver-kernel-module", Snapshot(files=module, outputs=smi().outputs)).status == status


CPU = {
    "/proc/self/status": "Name:\tx\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-15\n",
    "/proc/cpuinfo": "".join(f"processor\t: {n}\nflags\t\t: fpu hypervisor\n\n" for n in range(16)),
}


def host(extra: dict[str, str], **variables: str) -> Snapshot:
    return Snapshot(files=CPU | extra, environment=variables, problems=NO_BUS | NO_RDMA)


LIMITS = "Limit  Soft  Hard  Units\nMax stack size   {stack}  unlimited  bytes\nMax processes  {nproc}  9  processes\n"
LIMITS += "Max open files  {nofile}  9  files\nMax locked memory   {memlock}  unlimited  bytes\n"


def limits(
    stack: str = "8388608", nproc: str = "unlimited", nofile: str = "1048576", memlock: str = "unlimited"
) -> dict[str, str]:
    return {"/proc/self/limits": LIMITS.format(stack=stack, nproc=nproc, nofile=nofile, memlock=memlock)}


CGROUP = "/sys/fs/cgroup/job"
FREQ = "/sys/devices/system/cpu/cpu0/cpufreq"
HOST: list[tuple[str, dict[str, str], str]] = [
    ("cpu-governor", {f"{FREQ}/scaling_governor": "performance"}, "ok"),
    ("cpu-governor", {f"{FREQ}/scaling_governor": "powersave"}, "warn"),
    ("cpu-clock-limit", {f"{FREQ}/scaling_max_freq": "3000000", f"{FREQ}/cpuinfo_max_freq": "3000000"}, "ok"),
    ("cpu-clock-limit", {f"{FREQ}/scaling_max_freq": "1500000", f"{FREQ}/cpuinfo_max_freq": "3000000"}, "warn"),
    ("cpu-clocksource", {"/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc"}, "ok"),
    ("cpu-clocksource", {"/sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet"}, "warn"),
    ("cpu-quota", {f"{CGROUP}/cpu.max": "max 100000"}, "ok"),
    ("cpu-quota", {f"{CGROUP}/cpu.max": "200000 100000"}, "info"),
    (
        "cpu-quota",
        {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
        "info",
    ),
    ("cpu-cores-for-ranks", {f"{CGROUP}/cpu.max": "max 100000"}, "ok"),
    ("cpu-cores-for-ranks", {f"{CGROUP}/cpu.max": "50000 100000"}, "fail"),
    ("cpu-throttled", {f"{CGROUP}/cpu.stat": "nr_periods 100\nnr_throttled 50\n"}, "warn"),
    ("cpu-throttled", {f"{CGROUP}/cpu.stat": "nr_periods 100\nnr_throttled 0\n"}, "ok"),
    ("cpu-load", {"/proc/loadavg": "1.00 1.00 1.00 1/2 3"}, "ok"),
    ("cpu-load", {"/proc/loadavg": "99.0 1.00 1.00 1/2 3"}, "warn"),
    ("cpu-numa-balancing", {"/proc/sys/kernel/numa_balancing": "0"}, "ok"),
    (
        "cpu-numa-balancing",
        {
            "/proc/sys/kernel/numa_balancing": "1",
            "/sys/devices/system/node/node0/cpulist": "0-7",
            "/sys/devices/system/node/node1/cpulist": "8-15",
        },
        "warn",
    ),
    ("host-environment", {"/proc/self/cgroup": "0::/"}, "info"),
    ("limit-memlock", limits(), "ok"),
    ("limit-memlock", limits(memlock="65536"), "info"),
    ("limit-memlock", limits(memlock="65536") | rdma_port("mlx5_0"), "fail"),
    ("limit-open-files", limits(), "ok"),
    ("limit-open-files", limits(nofile="1024"), "warn"),
    ("limit-stack", limits(), "ok"),
    ("limit-stack", limits(stack="unlimited"), "warn"),
    ("limit-processes", limits(), "unknown"),
    ("limit-processes", limits() | {f"{CGROUP}/pids.max": "max"}, "ok"),
    ("limit-processes", limits() | {f"{CGROUP}/pids.max": "4000", f"{CGROUP}/pids.current": "3900"}, "warn"),
    ("limit-processes", limits() | {f"{CGROUP}/pids.max": "100"}, "warn"),
    ("limit-shared-memory", {"/proc/mounts": "shm /dev/shm tmpfs rw,size=65536k 0 0"}, "fail"),
    ("limit-shared-memory", {"/proc/mounts": "shm /dev/shm tmpfs rw,size=500m 0 0"}, "warn"),
    ("limit-shared-memory", {"/proc/mounts": "shm /dev/shm tmpfs rw,size=16g 0 0"}, "ok"),
    ("limit-remove-ipc", {"/etc/systemd/logind.conf": "[Login]\n#RemoveIPC=yes\nRemoveIPC=no\n"}, "ok"),
    ("limit-remove-ipc", {"/etc/systemd/logind.conf": "[Login]\nRemoveIPC=yes\n"}, "info"),
    ("memory-available", {"/proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 90 kB\n"}, "ok"),
    ("memory-available", {"/proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 10 kB\n"}, "warn"),
    ("memory-limit", {"/proc/meminfo": "MemTotal: 100 kB\n", f"{CGROUP}/memory.max": "max"}, "ok"),
    ("memory-limit", {"/proc/meminfo": "MemTotal: 100 kB\n", f"{CGROUP}/memory.max": "51200"}, "info"),
    ("memory-swap", {"/proc/meminfo": "MemTotal: 100 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"}, "ok"),
    ("memory-swap", {"/proc/meminfo": "MemTotal: 100 kB\nSwapTotal: 50 kB\nSwapFree: 10 kB\n"}, "warn"),
    ("memory-huge-pages", {"/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never"}, "info"),
    ("memory-oom", {f"{CGROUP}/memory.events": "oom 1\noom_kill 2\n"}, "fail"),
    ("memory-oom", {f"{CGROUP}/memory.events": "oom 0\noom_kill 0\n"}, "unknown"),  # the kernel log was not read
    ("kernel-uptime", {"/proc/uptime": "86400.0 1.0"}, "ok"),
    ("kernel-uptime", {"/proc/uptime": "60.0 1.0"}, "info"),
    ("kernel-pcie-errors", {"/sys/bus/pci/devices/0000:01:00.0/aer_dev_fatal": "DLP 1\nTOTAL_ERR_FATAL 1\n"}, "fail"),
    ("pci-iommu", {"/proc/cpuinfo": "flags : fpu\n", "/sys/kernel/iommu_groups/0/type": "identity"}, "ok"),
    ("net-tcp-buffers", {f"/proc/sys/net/ipv4/{n}": "4096 131072 6291456" for n in ("tcp_rmem", "tcp_wmem")}, "ok"),
    ("net-tcp-buffers", {f"/proc/sys/net/ipv4/{n}": "4096 131072 262144" for n in ("tcp_rmem", "tcp_wmem")}, "info"),
    ("net-port-range", {"/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999"}, "ok"),
    ("net-port-range", {"/proc/sys/net/ipv4/ip_local_port_range": "50000\t51000"}, "warn"),
    ("net-mtu", sysfs("/sys/class/net/eth0", mtu="9000") | sysfs("/sys/class/net/eth1", mtu="9000"), "ok"),
    ("net-mtu", sysfs("/sys/class/net/eth0", mtu="9000") | sysfs("/sys/class/net/eth1", mtu="1500"), "warn"),
    ("net-mtu", sysfs("/sys/class/net/ens1", mtu="1500", speed="200000"), "warn"),
    (
        "net-default-interface",
        sysfs("/sys/class/net/eth0", mtu="1500") | sysfs("/sys/class/net/docker0", mtu="1"),
        "ok",
    ),
    ("net-default-interface", sysfs("/sys/class/net/eth0", mtu="1500") | sysfs("/sys/class/net/ens1", mtu="1"), "info"),
    ("net-carrier-losses", sysfs("/sys/class/net/eth0", carrier_down_count="9"), "warn"),
    ("net-carrier-losses", sysfs("/sys/class/net/eth0", carrier_down_count="0"), "ok"),
    ("storage-read-ahead", {"/sys/block/nvme0n1/queue/read_ahead_kb": "128"}, "ok"),
    ("storage-read-ahead", {"/sys/block/nvme0n1/queue/read_ahead_kb": "4"}, "info"),
    ("rdma-port-state", rdma_port("mlx5_0") | rdma_port("mlx5_1"), "ok"),
    ("rdma-port-state", rdma_port("mlx5_0") | rdma_port("mlx5_1", state="1: DOWN", phys_state="3: Disabled"), "fail"),
    ("rdma-rate", {k: v for n in range(4) for k, v in rdma_port(f"mlx5_{n}").items()}, "ok"),
    (
        "rdma-rate",
        {k: v for n in range(4) for k, v in rdma_port(f"mlx5_{n}", rate="400 Gb/sec" if n else "200 Gb/sec").items()},
        "fail",
    ),
    ("rdma-link-downed", rdma_port("mlx5_0") | rdma_port("mlx5_1"), "ok"),
    ("rdma-link-downed", rdma_port("mlx5_0") | rdma_port("mlx5_1", counters__link_downed="7"), "warn"),
    ("rdma-symbol-errors", rdma_port("mlx5_0"), "ok"),
    ("rdma-symbol-errors", rdma_port("mlx5_0", counters__symbol_error="3"), "info"),
    ("rdma-symbol-errors", rdma_port("mlx5_0", counters__symbol_error="3000"), "warn"),
    ("rdma-retransmission", rdma_port("mlx5_0"), "ok"),
    ("rdma-retransmission", rdma_port("mlx5_0", hw_counters__out_of_sequence="5"), "info"),
    (
        "rdma-retransmission",
        {
            k: v
            for n in range(4)
            for k, v in rdma_port(f"mlx5_{n}", hw_counters__out_of_sequence="9" if n else "99999").items()
        },
        "warn",
    ),
    (
        "rdma-gid",
        rdma_port("mlx5_0", link_layer="Ethernet", gid_attrs__types__3="RoCE v2")
        | {"/sys/class/infiniband/mlx5_0/ports/1/gids/3": "0000:0000:0000:0000:0000:ffff:c000:0201"},
        "ok",
    ),
    ("rdma-gid", rdma_port("mlx5_0", link_layer="Ethernet", gid_attrs__types__0="IB/RoCE v1"), "warn"),
    ("rdma-gid", rdma_port("mlx5_0"), "info"),
    ("rdma-firmware", rdma_port("mlx5_0") | rdma_port("mlx5_1"), "ok"),
    (
        "rdma-firmware",
        rdma_port("mlx5_0") | rdma_port("mlx5_1") | {"/sys/class/infiniband/mlx5_1/fw_ver": "28.36.1010"},
        "warn",
    ),
]


@pytest.mark.parametrize(("check_id", "extra", "status"), HOST)
def test_a_reading_of_the_host_is_judged_and_a_missing_one_is_unknown(
    check_id: str, extra: dict[str, str], status: str
) -> None:
    assert result(check_id, host(extra)).status == status
    assert result(check_id, Snapshot()).status == "unknown"


KERNEL: list[tuple[str, str, str]] = [
    (
        "kernel-machine-check",
        "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7: be00000000800400",
        "fail",
    ),
    ("kernel-machine-check", "[Hardware Error]: CPU 1: Machine Check: 0 Bank 7: bc00000000010090", "fail"),
    (
        "kernel-machine-check",
        "{1}[Hardware Error]: event severity: fatal\n {1}[Hardware Error]: section_type: memory error",
        "fail",
    ),
    ("kernel-memory-corrected", "[Hardware Error]: CPU 1: Machine Check: 0 Bank 7: 8c00004000010090", "info"),
    ("kernel-memory-corrected", "mce: [Hardware Error]: Machine check events logged", "info"),
    ("kernel-memory-corrected", "EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "info"),
    ("kernel-pcie-errors", "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received", "fail"),
    ("kernel-pcie-errors", "pcieport 0000:00:01.0: AER: Uncorrectable (Non-Fatal) error message received", "warn"),
    ("kernel-pcie-errors", "pciehp 0000:00:03.1:pcie004: Slot(9): Link Down", "warn"),
    ("kernel-crash", "BUG: unable to handle kernel NULL pointer dereference at (null)", "fail"),
    ("gpu-xid", "NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", "fail"),
    ("gpu-xid", "NVRM: Xid (0000:03:00): 48, DBE (double bit error) ECC Error", "fail"),
    ("gpu-xid", "NVRM: Xid (PCI:0000:04:00): 145, RLW_REMAP Fatal XC0 i0 Link 00 (0x4 0x40 0x0 0x0)", "fail"),
    ("gpu-xid", "NVRM: Xid (PCI:0000:04:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x4 0x1 0x0 0x0)", "warn"),
    (
        "gpu-xid",
        "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)",
        "fail",
    ),
    (
        "gpu-xid",
        "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset) to 0x0 (None)",
        "warn",
    ),
    ("kernel-hung-task", "INFO: task python:7 blocked for more than 120 seconds.", "warn"),
    ("kernel-cpu-thermal", "CPU1: Package temperature above threshold, cpu clock throttled", "warn"),
    ("kernel-nccl-crash", "python[7]: segfault at 0 ip 0 sp 0 error 4 in libnccl.so.2[7f+d3d]", "warn"),
    ("memory-oom", "Out of memory: Killed process 7 (python) total-vm:1kB", "warn"),
    ("nic-health", "mlx5_core 0000:5e:00.0: device's health compromised - reached miss count", "fail"),
    ("storage-io-errors", "nvme nvme4: queue 0: timeout request 0x0 type 4", "warn"),
    ("nic-peermem-errors", "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context", "info"),
    ("net-carrier-losses", "mlx5_core 0000:1a:00.0 ib6: Link down", "info"),
    ("net-carrier-losses", "igb 0000:03:00.0 eno1: igb: eno1 NIC Link is Down", "info"),
    (
        "net-carrier-losses",
        "mlx5_core 0000:0c:00.0: port_module:253: Port module event[error]: module 0, Cable error",
        "warn",
    ),
    ("storage-read-only", "EXT4-fs (sda1): Remounting filesystem read-only", "fail"),
    ("storage-io-errors", "blk_update_request: I/O error, dev nvme0n1, sector 7", "warn"),
    ("storage-nfs-hangs", "nfs: server files not responding, still trying", "warn"),
]


@pytest.mark.parametrize(("check_id", "line", "status"), KERNEL)
def test_a_line_of_the_kernel_log_is_found_and_an_excerpt_without_it_is_unknown(
    check_id: str, line: str, status: str
) -> None:
    assert result(check_id, kernel_log(f"[   99.5] {line}")).status == status
    assert result(check_id, kernel_log("[   99.5] usb 1-1: new device")).status == "ok"
    assert result(check_id, printed("kernel log", "[   99.5] usb 1-1: new device\n")).status == "unknown"


TWO_NODES = "comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"
NCCL: list[tuple[str, tuple[str, ...], str]] = [
    ("nccl-log-network", ("Using network IB",), "ok"),
    ("nccl-log-network", ("NET/Socket : Using [0]eth0:192.0.2.1<0>", "Using network Socket"), "info"),
    ("nccl-log-network", ("NET/Socket : Using [0]eth0:192.0.2.1<0>", "Using network Socket", TWO_NODES), "warn"),
    (
        "nccl-log-network",
        ("NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:192.0.2.1<0>", "Using network Socket", TWO_NODES),
        "fail",
    ),
    ("nccl-log-network", ("Using network Socket", "node-b:1:2 [0] NCCL INFO Using network IB"), "fail"),
    (
        "nccl-log-gpu-direct",
        (
            "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
            "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA",
        ),
        "ok",
    ),
    ("nccl-log-gpu-direct", ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",), "unknown"),
    (
        "nccl-log-gpu-direct",
        (
            "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
            "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0",
        ),
        "fail",
    ),
    ("nccl-log-gpu-direct", ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",), "fail"),
    ("nccl-log-interface", ("Bootstrap : Using eth0:192.0.2.1<0>",), "ok"),
    ("nccl-log-interface", ("Bootstrap : Using docker0:192.0.2.1<0>",), "warn"),
    ("nccl-log-interface", ("NET/Socket : Using [0]ib0:192.0.2.1<0>",), "warn"),
    ("nccl-log-completion-error", ("Using network IB",), "ok"),
    (
        "nccl-log-completion-error",
        tuple(f"n:1:2 [0] NCCL WARN NET/IB : Got completion from peer x with status={s} opcode=0" for s in (5, 12)),
        "fail",
    ),
    ("nccl-log-warnings", ("Using network IB",), "ok"),
    ("nccl-log-warnings", ("n:1:2 [0] NCCL WARN Call to posix_fallocate failed : No space left on device",), "fail"),
    (
        "nccl-log-warnings",
        ("[2025-05-10 23:09:41] n:1:2 [2] transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'",),
        "fail",
    ),
    ("nccl-log-warnings", ("n:1:2 [2] init.cc:9 NCCL WARN Cuda failure 802 'system not yet initialized'",), "fail"),
    ("nccl-log-warnings", ("n:1:2 [2] init.cc:9 NCCL WARN Cuda failure 2 'out of memory'",), "fail"),
    ("nccl-log-version", ("NCCL version 2.21.5+cuda12.4",), "ok"),
    ("nccl-log-version", ("RCCL version : 2.22.3-HEAD:9f0ad0b", "n:1:2 [0] NCCL INFO Using network IB"), "ok"),
    ("nccl-log-version", ("NCCL version 2.21.5+cuda12.4", "NCCL version 2.18.1+cuda12.1"), "fail"),
    ("nccl-log-choices", ("4 Bytes -> Algo 0 proto 0 time 25.2",), "info"),
    ("nccl-log-affinity", ("Setting affinity for GPU 0 to ff",), "ok"),
    ("nccl-log-affinity", ("Setting affinity for GPU 0 to 1",), "warn"),
]


@pytest.mark.parametrize(("check_id", "lines", "status"), NCCL)
def test_lines_of_an_nccl_log_are_judged(check_id: str, lines: tuple[str, ...], status: str) -> None:
    assert result(check_id, nccl_log(*lines)).status == status
    assert result(check_id, Snapshot()).status == "unknown"


def test_the_first_completion_error_that_is_no_consequence_is_named() -> None:
    lines = [f"n:1:2 [0] NCCL WARN NET/IB : Got completion from peer x with status={s} opcode=0" for s in (5, 12)]
    assert result("nccl-log-completion-error", nccl_log(*lines)).reason.startswith("RDMA completion error, status 12")
    newer = "n:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.2.0.5<43402> with status=12 (Recv) hca mlx5_3"
    named = result("nccl-log-completion-error", nccl_log(newer)).reason
    assert all(part in named for part in ("on n", "at mlx5_3", "with 10.2.0.5 "))
    older = "gpu5:1:2 [0] net_ib.cu:788 NCCL WARN NET/IB : Got completion with error 4, opcode 1, len 0, vendor err 81"
    assert "on gpu5" in result("nccl-log-completion-error", nccl_log(older)).reason


@pytest.mark.parametrize("check_id", ["nccl-log-warnings", "nccl-log-completion-error"])
def test_a_log_that_ends_before_nccl_has_started_is_not_good(check_id: str) -> None:
    assert result(check_id, nccl_log("Using network IB", started=False)).status == "unknown"


def test_acs_and_read_requests_are_known_only_where_lspci_shows_them() -> None:
    good = lspci_bridge("0000:15:00.0", "16", acs="-") + lspci_gpu("0000:16:00.0")
    assert result("pci-access-control", printed("lspci -vvv", good)).status == "ok"
    bad = lspci_bridge("0000:15:00.0", "16", acs="+") + lspci_gpu("0000:16:00.0")
    assert result("pci-access-control", printed("lspci -vvv", bad)).status == "warn"
    denied = good.replace("\t\tACSCtl:\tSrcValid+ ReqRedir- CmpltRedir-\n", "\tCapabilities: <access denied>\n")
    found = result("pci-access-control", printed("lspci -vvv", denied))
    assert (found.status, "root" in found.reason) == ("unknown", True)
    nic = "0000:18:00.0 Infiniband controller: Mellanox Technologies MT2910\n\t\tMaxReadReq {} bytes\n"
    for size, status in ((4096, "ok"), (512, "info")):
        assert result("pci-read-request", printed("lspci -vvv", nic.format(size))).status == status


def test_the_iommu_of_a_gpu_server_should_translate_nothing() -> None:
    bus = sysfs(f"/sys/bus/pci/devices/{ADDRESSES[0]}", **{"class": "0x030200", "vendor": "0x10de"})
    metal = {"/proc/cpuinfo": "flags : fpu\n", "/sys/kernel/iommu_groups/0/type": "DMA-FQ"}
    assert result("pci-iommu", Snapshot(files=bus | metal)).status == "warn"
    assert result("pci-iommu", host(metal | {"/proc/cpuinfo": "flags : fpu hypervisor\n"})).status == "info"


def test_gpu_direct_needs_peermem_or_dma_buf() -> None:
    bus = sysfs(f"/sys/bus/pci/devices/{ADDRESSES[0]}", **{"class": "0x030200", "vendor": "0x10de"})
    base = bus | rdma_port("mlx5_0") | {"/proc/sys/kernel/osrelease": "5.15.0-1"}
    closed = {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module 550.54"}
    opened = {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 550.54"}
    for extra, status in (
        ({"/proc/modules": "nvidia_peermem 16384 0 - Live\n"} | closed, "ok"),
        ({"/proc/modules": "nvidia 1 0 - Live\n"} | opened, "ok"),
        ({"/proc/modules": "nvidia 1 0 - Live\n"} | closed, "fail"),
        ({"/proc/modules": "nvidia 1 0 - Live\n"} | opened | {"/proc/sys/kernel/osrelease": "5.4.0"}, "fail"),
    ):
        assert result("nic-gpu-direct", Snapshot(files=base | extra)).status == status


def test_nvme_and_nic_links() -> None:
    link = {"current_link_width": "4", "max_link_width": "4", "max_link_speed": "16.0 GT/s PCIe"}
    for speed, status in (("16.0 GT/s PCIe", "ok"), ("8.0 GT/s PCIe", "warn")):
        disk = sysfs("/sys/bus/pci/devices/0000:02:00.0", **{"class": "0x010802", "current_link_speed": speed} | link)
        assert result("storage-nvme-link", Snapshot(files=disk)).status == status
        nic = sysfs("/sys/bus/pci/devices/0000:02:00.0", **{"class": "0x020000", "current_link_speed": speed} | link)
        assert result("nic-pcie-link", Snapshot(files=nic)).status == status
    assert result("nic-pcie-link", printed("nvidia-smi topo -m", HEALTHY_MATRIX)).status == "unknown"


def df(*rows: str) -> Output:
    return Output(text="Filesystem 1024-blocks Used Available Capacity Mounted on\n" + "\n".join(rows) + "\n")


def test_space_inodes_and_mounts() -> None:
    good = {"df -P -k": df("/dev/a 100000000 1 90000000 1% /"), "df -P -i": df("/dev/a 1000 1 900 1% /")}
    mounts = {"/proc/mounts": "/dev/a / ext4 rw 0 0\n"}
    for name in ("storage-free-space", "storage-inodes", "storage-mount-kind"):
        assert result(name, Snapshot(outputs=good, files=mounts)).status == "ok"
        assert result(name, Snapshot()).status == "unknown"
    full = {"df -P -k": df("/dev/a 100000000 1 1000 1% /"), "df -P -i": df("/dev/a 1000 1 2 1% /")}
    assert result("storage-free-space", Snapshot(outputs=full)).status == "fail"
    assert result("storage-inodes", Snapshot(outputs=full)).status == "warn"
    nfs = {"/proc/mounts": "files:/a / nfs4 rw 0 0\n"}
    assert result("storage-mount-kind", Snapshot(outputs=good, files=nfs)).status == "info"


def test_a_fabric_manager_that_is_down_fails_only_beside_a_switch() -> None:
    down = {"systemctl is-active nvidia-fabricmanager": Output(text="inactive\n")}
    switch = sysfs("/sys/bus/pci/devices/0000:c1:00.0", **{"class": "0x068000", "vendor": "0x10de"})
    files = switch | {"/proc/self/cgroup": "0::/\n"}
    assert result("fabric-manager", Snapshot(outputs=down, files=files)).status == "fail"
    up = {"systemctl is-active nvidia-fabricmanager": Output(text="active\n")}
    assert result("fabric-manager", Snapshot(outputs=up, files=files)).status == "ok"
    assert result("fabric-manager", Snapshot(outputs=down, problems=NO_BUS)).status == "info"


def test_efa_without_its_plugin_fails() -> None:
    ports = rdma_port("rdmap16s27")
    log = nccl_log("Using network {}").outputs
    socket = {name: Output(text=(output.text or "").format("Socket")) for name, output in log.items()}
    ofi = {name: Output(text=(output.text or "").format("AWS Libfabric")) for name, output in log.items()}
    assert result("nccl-network-plugin", Snapshot(files=ports, outputs=socket)).status == "fail"
    assert result("nccl-network-plugin", Snapshot(files=ports, outputs=ofi)).status == "ok"
    assert result("nccl-network-plugin", Snapshot(files=ports, environment={})).status == "unknown"


def test_threads_of_all_ranks_must_fit_the_cores() -> None:
    quota = {f"{CGROUP}/cpu.max": "max 100000"}
    assert result("omp-threads", host(quota, OMP_NUM_THREADS="4", LOCAL_WORLD_SIZE="4")).status == "ok"
    assert result("omp-threads", host(quota, OMP_NUM_THREADS="16", LOCAL_WORLD_SIZE="4")).status == "warn"


def test_memory_of_numa_nodes_is_compared() -> None:
    def node(number: int, size: int) -> dict[str, str]:
        base = f"/sys/devices/system/node/node{number}"
        return {f"{base}/meminfo": f"Node {number} MemTotal:  {size} kB", f"{base}/cpulist": "0-7"}

    assert result("memory-numa-nodes", host(node(0, 1000) | node(1, 1000))).status == "ok"
    assert result("memory-numa-nodes", host(node(0, 1000) | node(1, 500))).status == "warn"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_nothing_that_was_read_is_never_ok_and_every_check_explains_itself(check: object) -> None:
    found = result(check.id, Snapshot())  # type: ignore[attr-defined]
    assert found.status == "unknown"
    assert found.reason
    for text in (found.title, found.read, found.expected, found.source, found.cost, found.fix, found.when_wrong):
        assert text


def test_there_are_at_least_sixty_checks_in_five_families() -> None:
    assert len(CHECKS) >= 60
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert {check.family for check in CHECKS} == {"gpu", "software", "host", "network", "storage"}


SDR = """\
Inlet Temp       | 04h | ok  |  7.1 | 23 degrees C
Fan1             | 30h | ok  |  7.1 | 5640 RPM
PS Redundancy    | 77h | ok  |  7.1 | Fully Redundant
"""


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        (SDR, "ok", "2 sensors in order"),
        (SDR.replace("30h | ok", "30h | cr"), "warn", "Fan1 critical"),
        (SDR.replace("Fully Redundant", "Redundancy Lost"), "warn", "not redundant"),
        ("Could not open device at /dev/ipmi0\n", "unknown", "not that of ipmitool"),
    ],
)
def test_the_sensors_of_the_bmc(text: str, status: str, words: str) -> None:
    found = result("bmc-sensors", Snapshot(outputs={"ipmitool sdr elist": Output(text=text)}))
    assert found.status == status and words in found.reason
    assert result("bmc-sensors", Snapshot()).status == "unknown"


@pytest.mark.parametrize(
    ("sensors", "redundant", "status", "words"),
    [
        ([("Inlet", "ok"), ("Fan 1", None)], True, "ok", "2 sensors in order"),
        ([("Inlet", "ok"), ("Fan 1", "warning")], True, "warn", "Fan 1 warning"),
        ([("Inlet", "ok")], False, "warn", "not redundant"),
    ],
)
def test_sensors_by_redfish_come_before_those_of_ipmitool(
    sensors: list[tuple[str, Any]], redundant: bool, status: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout import doctor_pipeline

    reading = BmcReading(
        sensors=tuple(BmcSensor(name=name, kind="other", health=health) for name, health in sensors),
        is_redundant=redundant,
    )
    here = Snapshot(outputs={"ipmitool sdr elist": Output(text=SDR)})
    monkeypatch.setattr(doctor_pipeline, "read_machine", lambda data: here)
    monkeypatch.setattr(doctor_pipeline, "read_redfish", lambda client: reading)
    snapshot = doctor_pipeline.read_snapshot([], redfish="https://bmc-n7")
    found = result("bmc-sensors", snapshot)
    assert found.status == status and words in found.reason
    damaged = Snapshot(outputs={BMC_SENSORS: Output(text='{"sensors": 3}')})
    assert result("bmc-sensors", damaged).status == "unknown"
