"""Inputs from public reports that were judged wrongly, and others of their kinds: each with its right answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.doctor.samples import kernel_log, nccl_log, result

from flatout.catalog.nccl_messages import nccl_messages
from flatout.catalog.xids import xid_fix, xid_name
from flatout.doctor.checks import CHECKS
from flatout.doctor.inputs import read_inputs
from flatout.doctor.judge import judge_machine
from flatout.records.doctor import CheckResult
from flatout.records.snapshot import Snapshot
from flatout.report.doctor_html import doctor_html
from flatout.report.doctor_text import doctor_text
from flatout.report.terminal import TextStyle

CASES = Path(__file__).parent.parent / "data" / "doctor"


def judged(*names: str) -> dict[str, CheckResult]:
    report = judge_machine(read_inputs([CASES / name for name in names]))
    return {check.id: check for check in report.checks}


def statuses(results: dict[str, CheckResult], *wanted: str) -> set[str]:
    return {name for name, check in results.items() if check.status in wanted}


# What each file shows.


def test_the_log_of_one_rank_of_several_hosts_is_judged_as_a_job_over_the_network() -> None:
    found = judged("h100vm_rank0.log")["nccl-log-paths"]
    assert found.status == "warn"
    assert found.title == "NCCL's rings cross the CPU: 1 channel x 2.4 GB/s, NVL within the host, SYS to the network"


def test_a_whole_kernel_log_has_its_three_failures_and_no_other() -> None:
    results = judged("whole.txt")
    assert statuses(results, "fail", "warn") == {"gpu-driver-start", "kernel-lockup", "nic-health"}
    for name, words in {
        "gpu-driver-start": "0000:98:00.0: RmInitAdapter failed!",
        "kernel-lockup": "soft lockup - CPU#12 stuck for 26s!",
        "nic-health": "Fatal error 1 detected",
    }.items():
        assert results[name].status == "fail"
        assert words in results[name].title


@pytest.mark.parametrize(
    ("name", "cause", "fix"),
    [
        ("dup.log", "two ranks use the same GPU", "LOCAL_RANK"),
        ("memlock380.log", "memlock limit", "ulimit -l unlimited"),
        ("open451.log", "/dev/infiniband is missing", "--device=/dev/infiniband"),
    ],
)
def test_a_line_that_ends_a_job_fails_with_its_cause_and_the_way_out(name: str, cause: str, fix: str) -> None:
    found = judged(name)["nccl-log-warnings"]
    assert found.status == "fail"
    assert cause in found.title
    assert fix in found.fix


def test_a_job_on_one_host_is_not_told_about_sockets() -> None:
    results = judged("dup.log")
    assert statuses(results, "fail", "warn") == {"nccl-log-warnings"}
    text = doctor_text(judge_machine(read_inputs([CASES / "dup.log"])), style=TextStyle())
    assert "socket" not in text.lower()


def test_a_port_that_ibstat_shows_down_fails(tmp_path: Path) -> None:
    found = judged("ibstat.txt")["rdma-port-state"]
    assert (found.status, "mlx5_1/1 (1: DOWN" in found.title) == ("fail", True)
    post = tmp_path / "post.txt"
    quoted = "".join(f"> {line}\n" for line in (CASES / "ibstat.txt").read_text().splitlines())
    post.write_text(f"Our job hangs since yesterday, here is ibstat:\n\n{quoted}\nAny ideas?\n")
    report = judge_machine(read_inputs([post]))
    assert next(check for check in report.checks if check.id == "rdma-port-state").status == "fail"


# Others of their kinds.


@pytest.mark.parametrize(
    ("lines", "spans"),
    [
        (["comm 0x1 rank 3 nranks 16 cudaDev 3 busId 1a000 - Init START"], None),
        (["comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"], True),
        (["comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0"], False),
        (["comm 0x1 rank 0 nranks 16 - Init START", "Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0"], True),
        (["comm 0x1 rank 0 nranks 16 - Init START", " 0 : NET/0 GPU/0 GPU/1 NET/0"], True),
        ([f"comm 0x1 rank {rank} nranks 2 - Init START" for rank in (0, 1)], False),
        (
            [
                "comm 0x1 rank 0 nranks 8 - Init START",
                "Pattern 4, crossNic 0, nChannels 1, bw 20.0/20.0, type NVL/PIX, sameChannels 1",
                " 0 : GPU/0 GPU/1 GPU/2 GPU/3",
            ],
            False,
        ),
        (
            [
                "comm 0x1 rank 0 nranks 16 - Init START",
                "Pattern 5, crossNic 0, nChannels 1, bw 20.0/20.0, type NVL/PIX, sameChannels 1",
                " 0 : GPU/0 GPU/1 GPU/2 GPU/3",
            ],
            None,  # not of rings
        ),
        # A group of two of the ranks, within a job of sixteen, of which one rank is here.
        (["comm 0x1 rank 0 nranks 2 - Init START", "comm 0x2 rank 0 nranks 16 - Init START"], None),
    ],
)
def test_whether_a_log_is_of_one_host(lines: list[str], spans: bool | None) -> None:
    from flatout.doctor.parse.nccl_log import parse_nccl_log

    text = "".join(f"node-a:10:20 [0] NCCL INFO {line}\n" for line in lines)
    assert parse_nccl_log(text).needs_network is spans


def test_paths_of_a_host_alone_do_not_need_the_network() -> None:
    pattern = "Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/SYS, sameChannels 1"
    ranks = [f"comm 0x1 rank {rank} nranks 2 - Init START" for rank in (0, 1)]
    assert result("nccl-log-paths", nccl_log(*ranks, pattern)).status == "ok"
    rank = "comm 0x1 rank 0 nranks 16 nNodes 2 - Init START"
    assert result("nccl-log-paths", nccl_log(rank, pattern, started=False)).status == "warn"


# From NCCL's source and public issues: the text, and a word of the cause.
ENDINGS = [
    ("init.cc:871", "Duplicate GPU detected : rank 5 and rank 4 both on CUDA device 4b000", "same GPU"),
    ("misc/ibvwrap.cc:143", "Call to ibv_reg_mr failed with error Cannot allocate memory", "memlock"),
    ("misc/ibvwrap.cc:160", "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "memlock"),
    ("misc/ibvwrap.cc:297", "Call to ibv_create_qp failed with error Cannot allocate memory errno 12", "memlock"),
    (
        "misc/ibvwrap.cc:160",
        "Call to ibv_reg_mr_iova2 failed with error Bad address",
        "GPU memory cannot be registered",
    ),
    ("misc/ibvwrap.cc:212", "Call to ibv_open_device failed", "/dev/infiniband"),
    ("misc/ibvwrap.cc:94", "Call to ibv_modify_qp failed with error Network is unreachable", "GID"),
    (
        "misc/ibvwrap.cc:386",
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1",
        "cannot be reached",
    ),
    ("misc/ibvwrap.cc:386", "Call to ibv_modify_qp failed with 22 Invalid argument errno 22", "do not match"),
    ("include/shm.h:28", "Call to posix_fallocate failed : No space left on device", "/dev/shm"),
    (
        "misc/shmutils.cc:72",
        "Error: failed to extend /dev/shm/nccl-3YtVkI to 33030532 bytes, error: No space left on device (28)",
        "/dev/shm",
    ),
    ("bootstrap.cc:107", "Bootstrap : no socket interface found", "NCCL_SOCKET_IFNAME"),
    ("net.cc:90", "Error: network AWS Libfabric not found.", "NCCL_NET"),
    ("misc/socket.cc:456", "Call to socket failed : Too many open files", "open files"),
    (
        "transport/net_socket.cc:540",
        "NET/Socket : peer 10.0.0.2 message truncated : receiving 65536 bytes",
        "different",
    ),
    ("bootstrap.cc:330", "Bootstrap Root : rank 3 of 8 ranks checked in twice", "two jobs"),
    ("enqueue.cc:1850", "Error : no algorithm/protocol available for function AllReduce", "NCCL_ALGO"),
    ("init.cc:1250", "Mismatched NCCL version detected : rank 0 version 21903 rank 8 version 22005", "versions"),
    ("init.cc:1691", "Cuda failure 802 'system not yet initialized'", "CUDA is not ready"),
    ("transport/nvls.cc:254", "Cuda failure 1 'invalid argument'", "NVLink SHARP"),
    ("include/alloc.h:185", "Cuda failure 'out of memory'", "no GPU memory"),
    ("include/alloc.h:103", "Cuda failure 2 'out of memory'", "no GPU memory"),
    ("init.cc:400", "Cuda failure 'uncorrectable ECC error encountered'", "memory error"),
    ("enqueue.cc:100", "Cuda failure 700 'an illegal memory access was encountered'", "kernel crashed"),
    ("init.cc:1400", "Cuda failure 'invalid device ordinal'", "does not have"),
    ("misc/cudawrap.cc:112", "Cuda failure 3 'initialization error'", "forked"),
    (
        "misc/cudawrap.cc:36",
        "Cuda failure 803 'system has unsupported display driver / cuda driver combination'",
        "two|different",
    ),
    (
        "transport/p2p.cc:200",
        "Cuda failure 217 'peer access is not supported between these two devices'",
        "map each other",
    ),
    ("transport/net_ib.cc:91", "NET/IB : mlx5_2:1 Got async event : port error", "went down"),
    ("misc/socket.cc:49", "socketProgress: Connection closed by remote peer node-b<42342>", "failed first"),
    ("proxy.cc:1484", "[Service thread] Accept failed Resource temporarily unavailable", "(not in the table)"),
]


@pytest.mark.parametrize(("source", "text", "cause"), ENDINGS)
def test_known_lines_have_their_cause_and_their_own_way_out(source: str, text: str, cause: str) -> None:
    found = result("nccl-log-warnings", nccl_log(f"node-a:10:20 [0] {source} NCCL WARN {text}", started=False))
    if cause == "(not in the table)":
        assert (found.status, "an NCCL warning" in found.title) == ("warn", True)
        return
    assert found.status == "fail", found.title
    assert any(part in found.title for part in cause.split("|")), found.title
    assert found.fix != next(check.fix for check in CHECKS if check.id == "nccl-log-warnings")


def test_a_cause_stands_before_what_followed_from_it() -> None:
    lines = [
        "node-b:10:20 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node-a<4>",
        "node-a:10:20 [0] init.cc:400 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'",
    ]
    found = result("nccl-log-warnings", nccl_log(*lines))
    assert found.title.startswith("a GPU has an uncorrectable memory error on node-a")
    assert "also: the connection to another rank ended" in found.title


def test_every_known_line_has_a_cause_a_way_out_and_a_source() -> None:
    for message in nccl_messages():
        assert message.cause and message.fix and message.source and message.pattern


FAULTS = [
    ("NVRM: GPU at PCI:0000:1b:00: GPU-xx RmInitAdapter failed! (0x26:0xffff:1265)", "gpu-driver-start", "fail"),
    ("nvidia: probe of 0000:1b:00.0 failed with error -1", "gpu-driver-start", "fail"),
    ("NVRM: The NVIDIA probe routine failed for 1 device(s).", "gpu-driver-start", "fail"),
    ("NVRM: API mismatch: the client has the version 550.54.15, but", "gpu-driver-start", "fail"),
    ("watchdog: Watchdog detected hard LOCKUP on cpu 7", "kernel-lockup", "fail"),
    ("rcu: INFO: rcu_sched self-detected stall on CPU", "kernel-lockup", "warn"),
    ("mlx5_core 0000:1a:00.0: mlx5_health_try_recover:321:(pid 1): health recovery flow aborted", "nic-health", "fail"),
    ("bnxt_en 0000:17:00.0 eth0: Firmware not responding, status: 0x0", "nic-health", "fail"),
    ("NETDEV WATCHDOG: ens5 (ena): transmit queue 3 timed out 5020 ms", "nic-health", "fail"),
    ("ice 0000:31:00.0: PF reset failed, Hardware Error", "nic-health", "fail"),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff, failed", "kernel-other-errors", "warn"),
    ("mlx5_core 0000:1a:00.0: some new failure of this driver", "kernel-other-errors", "warn"),
    ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=4", "gpu-driver-start", "fail"),
    (
        "[drm:nv_drm_load [nvidia_drm]] *ERROR* [nvidia-drm] Failed to allocate NvKmsKapiDevice",
        "kernel-other-errors",
        "warn",
    ),
    ("NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY]", "kernel-other-errors", "warn"),
    (
        "mlx5_core 0000:1a:00.0: mlx5_cmd_out_err: ACCESS_REG failed, bad parameter",
        "kernel-other-errors",
        "warn",
    ),
    (
        "mlx5_core 0000:1a:00.0: wait_func:1151:(pid 8): ACCESS_REG timeout. Will cause a leak",
        "nic-health",
        "fail",
    ),
    ("snazzy 0000:1a:00.0: frobnication failed", "kernel-other-errors", "info"),
]


@pytest.mark.parametrize(("line", "check_id", "status"), FAULTS)
def test_a_fault_in_a_whole_kernel_log_is_not_well(line: str, check_id: str, status: str) -> None:
    found = result(check_id, kernel_log(f"[ 7.0] {line}"))
    assert (found.status, line[:60] in found.reason) == (status, True), found.reason
    report = judge_machine(kernel_log(f"[ 7.0] {line}"))
    assert [check.id for check in report.checks if check.status == status] == [check_id]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("kern  :err   : [    9.0] quux 0000:01:00.0: it went wrong", "info"),
        ("kern  :warn  : [    9.0] quux 0000:01:00.0: request failed", "ok"),
        ("kern  :crit  : [    9.0] quux: it went very wrong", "warn"),
        ("<3>[    9.0] quux: it went wrong", "info"),
        ("<4>[    9.0] quux: request failed", "ok"),
        ("3,120,9000000,-;quux: it went wrong", "info"),
        ("<2>[    9.0] quux: it went very wrong", "warn"),
        ("daemon:err   : [    9.0] quux: it went wrong", "info"),
        ("kern  :err   : [    9.0] mlx5_core 0000:1a:00.0: some new failure", "warn"),
        # Drivers that announce themselves at error level, as on a healthy machine with H200s.
        ("kern  :err   : [    9.0] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04", "ok"),
        ("kern  :err   : [    9.0] nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms", "ok"),
        ("kern  :err   : [    9.0] nvidia-nvlink: Nvlink Core is being initialized, major device number 235", "ok"),
        ("kern  :err   : [    9.0] EDAC igen6: Expected 2 mcs, but only 1 detected.", "ok"),
        ("kern  :err   : [    9.0] NVRM: kbifInitLtr_GB202: LTR is disabled in the hierarchy", "ok"),
        ("kern  :err   : [    9.0] NVRM: GPU 0000:1b:00.0: some odd remark", "info"),
    ],
)
def test_the_levels_of_the_log_decide_where_it_has_them(line: str, status: str) -> None:
    assert result("kernel-other-errors", kernel_log(line)).status == status


def test_unknown_error_lines_are_counted_and_the_gravest_comes_first() -> None:
    lines = [f"[ {number}.0] quux: request {number} failed" for number in range(7)]
    found = result("kernel-other-errors", kernel_log(*lines, "[ 9.0] mlx5_core 0000:1a:00.0: odd failure"))
    assert found.status == "warn"
    assert found.title.startswith(
        "8 lines at error level that no check recognizes: mlx5_core 0000:1a:00.0: odd failure (1x)"
    )
    assert "quux: request 6 failed (7x)" in found.title


def test_lines_that_healthy_kernels_write_are_no_errors() -> None:
    healthy = [
        "ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PC00], AE_NOT_FOUND (20230628/psargs-330)",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@)",
        "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  580.159.04",
        "nvidia-uvm: Loaded the UVM driver, major device number 511.",
        "[drm] [nvidia-drm] [GPU ID 0x00001b00] Loading driver",
        "systemd[1]: Failed to find module 'snd'",
        "EDAC MC: Ver: 3.0.0",
        "ERST: Error Record Serialization Table (ERST) support is initialized.",
        "RAS: Correctable Errors collector initialized.",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
        "mlx5_core 0000:1a:00.0: firmware version: 28.43.2026",
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "pci 0000:00:1f.0: BAR 13: failed to assign [io size 0x1000]",
        "Kernel command line: panic=10 hung_task_panic=1",
        "platform regulatory.0: Direct firmware load for regulatory.db failed with error -2",
    ]
    log = kernel_log(*(f"[ {number}.0] {line}" for number, line in enumerate(healthy)))
    assert statuses({check.id: check for check in judge_machine(log).checks}, "fail", "warn", "info") <= {
        "kernel-other-errors"
    }
    assert result("kernel-other-errors", log).status == "ok", result("kernel-other-errors", log).reason


IBV_DEVINFO = """
hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.39.1002
\tboard_id:\t\t\tMT_0000000838
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_{state} ({number})
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tlink_layer:\t\tEthernet
\t\t\tactive_width:\t\t4X (2)
\t\t\tactive_speed:\t\t25.0 Gbps (32)
\t\t\tphys_state:\t\tLINK_UP (5)
\t\t\tGID[  0]:\t\tfe80:0000:0000:0000:b83f:d203:00aa:aa10, RoCE v1
\t\t\tGID[  3]:\t\t::ffff:192.0.2.7, RoCE v2
"""
IBSTATUS = """
Infiniband device 'mlx5_0' port 1 status:
\tstate:\t\t 4: ACTIVE
\tphys state:\t 5: LinkUp
\trate:\t\t 400 Gb/sec (4X NDR)
\tlink_layer:\t InfiniBand

Infiniband device 'mlx5_0' port 2 status:
\tstate:\t\t 2: INIT
\tphys state:\t 5: LinkUp
\trate:\t\t 400 Gb/sec (4X NDR)
\tlink_layer:\t InfiniBand
"""


def read_text(text: str, tmp_path: Path) -> dict[str, CheckResult]:
    path = tmp_path / "output.txt"
    path.write_text(text)
    return {check.id: check for check in judge_machine(read_inputs([path])).checks}


def test_ibv_devinfo_is_read(tmp_path: Path) -> None:
    up = read_text(IBV_DEVINFO.format(state="ACTIVE", number=4), tmp_path)
    assert (up["rdma-port-state"].status, up["rdma-gid"].status) == ("ok", "ok")
    assert up["rdma-rate"].reason == "1 ports of Ethernet at 100 Gb/s"
    down = read_text(IBV_DEVINFO.format(state="DOWN", number=1), tmp_path)
    assert down["rdma-port-state"].title == "no RDMA port is up: mlx5_0/1 (1: DOWN, 5: LinkUp)"


def test_ibstatus_is_read_and_two_ports_of_a_device_are_of_one_device(tmp_path: Path) -> None:
    found = read_text(IBSTATUS, tmp_path)["rdma-port-state"]
    assert found.title == "RDMA ports are not up: mlx5_0/2 (2: INIT, 5: LinkUp)"


def test_a_second_host_in_one_post_hides_nothing(tmp_path: Path) -> None:
    text = (CASES / "ibstat.txt").read_text().replace("State: Down", "State: Active").replace("Disabled", "LinkUp")
    bad = (CASES / "ibstat.txt").read_text()
    found = read_text(f"node 1:\n{text}\nnode 2:\n{bad}", tmp_path)["rdma-port-state"]
    assert (found.status, "mlx5_1#2/1" in found.title) == ("fail", True)


SMI_XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>570.133.20</driver_version><cuda_version>12.8</cuda_version><attached_gpus>{num}</attached_gpus>
{gpus}</nvidia_smi_log>
"""
GPU_XML = """  <gpu id="00000000:{bus}:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name>
    <persistence_mode>Enabled</persistence_mode><mig_mode><current_mig>{mig}</current_mig></mig_mode>
    <fabric><state>Completed</state><status>Success</status></fabric>
    <gpu_recovery_action>None</gpu_recovery_action><compute_mode>Default</compute_mode>
    <pci><pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>5</current_link_gen></pcie_gen>
      <link_widths><max_link_width>16x</max_link_width><current_link_width>{width}x</current_link_width></link_widths>
    </pci_gpu_link_info><replay_counter>0</replay_counter><replay_rollover_counter>0</replay_rollover_counter></pci>
    <clocks_event_reasons><clocks_event_reason_hw_slowdown>{slow}</clocks_event_reason_hw_slowdown>
      <clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
    </clocks_event_reasons>
    <fb_memory_usage><total>81559 MiB</total><used>4 MiB</used></fb_memory_usage>
    <utilization><gpu_util>90 %</gpu_util></utilization>
    <ecc_errors><volatile><sram_uncorrectable_parity>0</sram_uncorrectable_parity>
      <dram_uncorrectable>{errors}</dram_uncorrectable></volatile>
      <aggregate><sram_threshold_exceeded>No</sram_threshold_exceeded></aggregate></ecc_errors>
    <remapped_rows><remapped_row_unc>0</remapped_row_unc><remapped_row_pending>{pending}</remapped_row_pending>
      <remapped_row_failure>No</remapped_row_failure></remapped_rows>
    <retired_pages><double_bit_retirement><retired_count>N/A</retired_count></double_bit_retirement></retired_pages>
  </gpu>
"""
GOOD_XML = {"mig": "Disabled", "width": 16, "slow": "Not Active", "errors": 0, "pending": "No"}


def smi_xml(*changes: dict[str, object]) -> str:
    gpus = [GPU_XML.format(bus=f"{0x1B + number:02X}", **(GOOD_XML | change)) for number, change in enumerate(changes)]
    return SMI_XML.format(num=len(gpus), gpus="".join(gpus))


@pytest.mark.parametrize(
    ("check_id", "change"),
    [
        ("gpu-ecc-uncorrectable", {"errors": 3}),
        ("gpu-row-remap", {"pending": "Yes"}),
        ("gpu-pcie-width", {"width": 8}),
        ("gpu-mig", {"mig": "Enabled"}),
        ("gpu-hardware-slowdown", {"slow": "Active"}),
    ],
)
def test_the_xml_of_nvidia_smi_is_judged_as_its_text(check_id: str, change: dict[str, object], tmp_path: Path) -> None:
    good = read_text(smi_xml({}, {}), tmp_path)
    assert good[check_id].status == "ok", good[check_id].reason
    bad = read_text(smi_xml({}, change), tmp_path)
    assert bad[check_id].status == "fail"
    if check_id != "gpu-mig":
        assert "0000:1c:00.0" in bad[check_id].title


def test_a_truncated_xml_gives_what_is_complete(tmp_path: Path) -> None:
    whole = smi_xml({"errors": 3}, {})
    cut = read_text(whole[: whole.rindex("<remapped_rows>")], tmp_path)
    assert cut["gpu-ecc-uncorrectable"].status == "fail"
    assert cut["gpu-row-remap"].status == "unknown"


def test_entities_of_a_hostile_xml_are_not_expanded(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "AAAA"><!ENTITY b "&a;&a;">]>' + smi_xml({"pending": "&b;"})
    assert read_text(bomb, tmp_path)["gpu-ecc-uncorrectable"].status == "ok"


# Titles.


def test_a_check_is_titled_by_what_was_found_in_text_json_and_html() -> None:
    log = kernel_log("[ 7.0] NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s")
    report = judge_machine(log)
    found = next(check for check in report.checks if check.id == "gpu-xid")
    assert found.title == "Xid 119 on 0000:9b:00 (GSP RPC timeout)"
    assert found.topic == "GPU Xid errors"
    assert "  fail    gpu-xid: Xid 119 on 0000:9b:00 (GSP RPC timeout)" in doctor_text(report, style=TextStyle())
    assert '<p class="title">Xid 119 on 0000:9b:00 (GSP RPC timeout)</p>' in doctor_html(report, ["flatout"])


def test_a_check_that_is_not_at_fault_is_titled_by_its_topic_and_what_was_found() -> None:
    found = result("gpu-xid", kernel_log("[ 7.0] quiet"))
    assert found.title == "GPU Xid errors: none in 2 lines of the kernel log"
    assert result("gpu-xid", Snapshot()).title == "GPU Xid errors: the input has no output of `kernel log`"


def test_each_xid_has_a_way_out_of_its_own() -> None:
    numbers = [number for number in range(300) if xid_name(number)]
    assert len(numbers) > 50
    for number in numbers:
        assert len(xid_fix(number).split()) > 4
        found = result("gpu-xid", kernel_log(f"[ 7.0] NVRM: Xid (PCI:0000:9b:00): {number}, pid=1, fatal"))
        assert found.fix == xid_fix(number)
        assert found.title.startswith(f"Xid {number} on 0000:9b:00 (")
    several = result(
        "gpu-xid",
        kernel_log("[ 7.0] NVRM: Xid (PCI:0000:9b:00): 79, x", "[ 8.0] NVRM: Xid (PCI:0000:9b:00): 48, x"),
    )
    assert several.fix == f"Xid 48: {xid_fix(48)}; Xid 79: {xid_fix(79)}"
    assert "catalogue" in xid_fix(299)
