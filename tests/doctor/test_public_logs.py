"""Logs of NCCL and of the kernel as users post them, re-typed and shortened: prefixes, old forms, parts of a log."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.doctor.samples import nccl_log, printed, result

from flatout.doctor.inputs import kind_of, read_inputs, texts_of
from flatout.doctor.machine import KERNEL_LOG, LSPCI, NCCL_LOG, Machine
from flatout.records.snapshot import Output, Snapshot

# Logs of NCCL


def test_ranks_of_one_host_may_use_unlike_networks() -> None:
    log = nccl_log("Using network Socket", "node-a:11:21 [1] NCCL INFO Using network IB")
    found = result("nccl-log-network", log)
    assert (found.status, "node-a" in found.reason) == ("fail", True)


@pytest.mark.parametrize(
    ("via", "status", "named"),
    [
        ("NET/Socket/1", "warn", "node-a"),
        ("NET/AWS Libfabric/0/GDRDMA", "ok", "AWS Libfabric"),
        ("NET/IB/0", "ok", "IB"),
    ],
)
def test_the_network_is_told_by_channels_where_no_other_line_does(via: str, status: str, named: str) -> None:
    log = nccl_log(f"Channel 02/0 : 1[c6000] -> 4[c1000] [send] via {via} comm 0x9e4d8d0 nRanks 08")
    found = result("nccl-log-network", log)
    assert (found.status, named in found.reason) == (status, True)


_SIXTEEN = "comm 0x1 rank 0 nranks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"


def test_sockets_after_a_plugin_failed_are_a_fault() -> None:
    warned = "node-a:10:20 [5] nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call failed"
    assert result("nccl-log-network", nccl_log(warned, "Using network Socket", _SIXTEEN)).status == "fail"


NO_DEVICE, SOCKETS = "NET/IB : No device found.", "NET/Socket : Using [0]eth0:192.0.2.1<0>"


@pytest.mark.parametrize(
    ("lines", "status", "reason"),
    [
        ((NO_DEVICE, SOCKETS, "Using network Socket", _SIXTEEN), "warn", "NET/IB found no device"),
        (
            ("NCCL_IB_HCA set to mlx5_0:1", NO_DEVICE, SOCKETS, "Using network Socket", _SIXTEEN),
            "fail",
            "NET/IB found no device, although NCCL_IB_HCA names mlx5_0:1",
        ),
        (("node-a:1:2 [0] ofi_init:700 NCCL WARN NET/OFI Only EFA", SOCKETS), "fail", "after the plugin failed"),
    ],
)
def test_why_sockets_are_used_is_said_where_the_log_says_it(lines: tuple[str, ...], status: str, reason: str) -> None:
    found = result("nccl-log-network", nccl_log(*lines))
    assert (found.status, reason in found.reason) == (status, True)


def test_pairs_without_peer_to_peer_are_named_once_also_before_the_channels_are() -> None:
    """Each rank writes each pair, in both directions."""
    lines = [f"P2P is disabled between connected GPUs {pair}. You can repress" for pair in ("0 and 1", "1 and 0")]
    found = result("nccl-log-transport", nccl_log(*lines, *lines))
    assert found.status == "warn"
    assert found.reason == "peer-to-peer is turned off between connected GPUs: 0-1; channels: none in the log"


@pytest.mark.parametrize(
    "line",
    [
        "[2025-10-16 22:16:08] ip-172-0-0-1:1929:1937 [0] nccl_net_ofi_init:78 NCCL WARN NET/OFI none",
        "[1,23]<stdout>:ip-172-0-0-1:725:734 [7] create_component:459 NCCL WARN NET/OFI Couldn't open",
        "\x1b[2m\x1b[36m(pid=14605)\x1b[0m ip-172-0-0-1:14605:14673 [0] misc/ibvwrap.cc:63 NCCL WARN No device",
        "2023-01-01 10:22:33 ip-172-0-0-1:1:2 [0] net.cc:12 NCCL WARN Bad",
        "ip-172-0-0-1:88:301 [0] Result_t progress(tcpxComm*):1231 NCCL WARN rx ctrl timeout",
        "ip-172-0-0-1:18:19 [0] include/socket.h:360 WARN Call to bind failed",
    ],
)
def test_the_host_of_a_warning_is_found_behind_what_launchers_and_plugins_write(line: str) -> None:
    log = Machine(printed(NCCL_LOG, f"NCCL version 2.2.13\n{line}\n")).nccl_log
    assert (log.hosts, len(log.warnings)) == (("ip-172-0-0-1",), 1)


def test_ranks_that_cannot_reach_each_other_are_told_with_their_interfaces() -> None:
    up = "Bootstrap : Using [0]eno1:192.0.2.1<0> [1]veth25f2e72:fe80::1%veth25f2e72<0>"
    retry = "Call to connect returned Connection timed out, retrying"
    ended = "node-a:10:20 [0] include/socket.h:403 NCCL WARN Connect to fe80::1%27<43811> failed : Connection timed out"
    found = result("nccl-log-warnings", nccl_log(up, retry, ended, started=False))
    assert (found.status, "eno1" in found.reason, "timed out" in found.reason) == ("fail", True, True)
    assert result("nccl-log-warnings", nccl_log(up, retry, started=False)).status == "warn"
    assert result("nccl-log-warnings", nccl_log(up, retry)).status == "ok"  # it was refused, and then went on


def test_old_logs_lack_the_name_of_nccl() -> None:
    lines = (
        "h:1:1 [0] INFO NET : Using interface enp3s0:192.0.2.1<0>\n"
        "h:1:1 [0] INFO Using internal Network Socket\n"
        "h:1:2 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out\n"
    )
    assert kind_of(lines) == NCCL_LOG
    assert "enp3s0" in result("nccl-log-interface", printed(NCCL_LOG, lines)).reason
    assert result("nccl-log-network", printed(NCCL_LOG, lines)).status == "warn"
    assert result("nccl-log-warnings", printed(NCCL_LOG, lines)).status == "fail"


def test_a_log_of_one_rank_is_a_part() -> None:
    one = "n:1:2 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 16 - Init COMPLETE\n"
    found = result("nccl-log-warnings", printed(NCCL_LOG, one))
    assert (found.status, "15 of 16 ranks" in found.reason) == ("unknown", True)


def test_rdma_that_is_turned_off_is_told_without_the_host() -> None:
    log = nccl_log("NCCL_IB_DISABLE set by environment to 1.")
    assert result("nccl-infiniband", log).status == "warn"


# Kernel logs


def test_a_gpu_that_fell_off_the_bus_without_an_xid() -> None:
    lines = (
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
    )
    assert kind_of(lines) == KERNEL_LOG
    assert "0000:b3:00.0" in result("gpu-xid", printed(KERNEL_LOG, lines)).reason


def test_lost_messages_and_lines_of_others_make_no_whole_log() -> None:
    whole = "".join(f"[ {n}.5] usb 1-1: new device\n" for n in range(300))
    assert result("gpu-xid", printed(KERNEL_LOG, whole)).status == "ok"
    starts = ("<6>[ {}.5]", "[ +{}.5]", "kern  :info  : [ {}.5]", "2025-01-21T08:47:30,{}97+00:00")
    starts += (
        "Feb 14 05:03:41.{}8 h kernel:",
        "Mon 2025-01-20 13:17:05 UTC h kernel:",
        "2025-01-20T13:17:05+0000 h kernel:",
    )
    for start in starts:
        other = "".join(f"{start.format(n)} usb 1-1: new device\n" for n in range(300))
        assert kind_of(other) == KERNEL_LOG
        assert result("gpu-xid", printed(KERNEL_LOG, other)).status == "ok"
    lost = whole + "Feb 14 05:03:41 h systemd-journald[9]: Missed 53 kernel messages\n"
    assert "53" in result("gpu-xid", printed(KERNEL_LOG, lost)).reason
    assert result("gpu-xid", printed(KERNEL_LOG, lost)).status == "unknown"
    others = "a line of a job\n" * 300 + "[ 9.5] usb 1-1: new device\n"
    assert result("gpu-xid", printed(KERNEL_LOG, others)).status == "unknown"


def test_a_log_of_a_job_with_lines_of_the_kernel_is_both() -> None:
    job = "n:1:2 [0] NCCL INFO Using network IB\n" * 300
    found = texts_of(job + "[ 9.5] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    assert set(found) == {NCCL_LOG, KERNEL_LOG}
    snapshot = Snapshot(outputs={name: Output(text=part) for name, part in found.items()})
    assert result("gpu-xid", snapshot).status == "fail"
    assert result("kernel-machine-check", snapshot).status == "unknown"


def test_firmware_names_the_device_of_an_error() -> None:
    lines = (
        "[ 1.1] {1}[Hardware Error]: event severity: recoverable\n"
        "[ 1.2] {1}[Hardware Error]:   section_type: PCIe error\n"
        "[ 1.3] {1}[Hardware Error]:   device_id: 0000:5e:00.0\n"
    )
    found = result("kernel-pcie-errors", printed(KERNEL_LOG, lines))
    assert (found.status, "0000:5e:00.0" in found.reason) == ("warn", True)
    corrected = result("kernel-pcie-errors", printed(KERNEL_LOG, lines.replace("recoverable", "corrected")))
    assert corrected.status == "info"


# The last line of a text that is cut off

LAST = {
    LSPCI: "18:00.0 Infiniband controller: Mellanox MT2910\n\tNUMA node: 12\n"
    "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n"
    "\t\tLnkSta:\tSpeed 32GT/s, Width x16\n\t\tMaxReadReq 4096 bytes\n",
    KERNEL_LOG: "[ 2.5] NVRM: Xid (PCI:0000:3b:00): 119, pid=1\n"
    "[ 3.5] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48\n",
    NCCL_LOG: "n:1:2 [0] NCCL INFO comm 0x1 rank 10 nranks 16 - Init START\n"
    "n:1:2 [0] NCCL WARN NET/IB : Got completion from peer 192.0.2.5<43402> with status=12 opcode=0\n"
    "n:1:2 [0] NCCL INFO Using network IBext_v8\nn:1:2 [0] NCCL INFO Setting affinity for GPU 10 to ffff,00000000\n"
    "n:1:2 [0] NCCL INFO Channel 00/0 : 10[2] -> 11[3] [send] via NET/IB/10/GDRDMA\nNCCL version 2.21.15+cuda12\n",
}


def facts(name: str, text: str) -> set[object]:
    machine = Machine(printed(name, text))
    if name == LSPCI:
        return {
            (device.address, key, value)
            for device in machine.lspci
            for key, value in (
                *(msgspec.structs.asdict(device.link).items() if device.link else ()),
                ("numa", device.numa_node),
                ("request", device.max_read_request_bytes),
            )
            if value is not None
        }
    if name == KERNEL_LOG:
        return {(event.address, event.code) for event in (*machine.kernel_log.xids, *machine.kernel_log.sxids)}
    log = machine.nccl_log
    return {
        *log.channels,
        *log.versions,
        *log.networks.items(),
        *log.affinities.items(),
        *(error.status for error in log.completion_errors),
        *([("ranks", log.num_ranks)] if log.num_ranks else []),
    }


@pytest.mark.parametrize("name", list(LAST))
def test_a_number_or_name_that_is_cut_off_is_not_read(name: str) -> None:
    whole = facts(name, LAST[name])
    assert len(whole) >= 2
    for end in range(40, len(LAST[name])):
        assert facts(name, LAST[name][:end]) <= whole, LAST[name][end - 30 : end]


# Files


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_colours_and_encodings_of_terminals_are_read(tmp_path: Path, encoding: str) -> None:
    line = "\x1b[32m[   99.5] \x1b[0m\x1b[33mNVRM: \x1b[0mXid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\r\n"
    (tmp_path / "log").write_bytes(line.encode(encoding))
    assert result("gpu-xid", read_inputs([tmp_path / "log"])).status == "fail"
