"""Checks of the GPUs: good on a good host, bad on each fault that is put into it, unknown where the line is missing."""

from __future__ import annotations

import pytest
from tests.doctor.samples import ADDRESSES, HEALTHY_MATRIX, kernel_log, nccl_log, printed, result, smi

from flatout.records.snapshot import Output, Snapshot

Change = dict[str, str | None]
# check, fault on the first GPU, status with it, what takes the reading away (unknown then)
FAULTS: list[tuple[str, Change, str, Change]] = [
    (
        "gpu-ecc-uncorrectable",
        {"ECC Errors/Volatile/DRAM Uncorrectable": "2"},
        "fail",
        {
            "ECC Errors/Volatile/DRAM Uncorrectable": "N/A",
            "ECC Errors/Volatile/SRAM Uncorrectable Parity": "N/A",
        },
    ),
    (
        "gpu-sram-correctable",
        {"ECC Errors/Aggregate/SRAM Correctable": "10001"},
        "warn",
        {"ECC Errors/Aggregate/SRAM Correctable": "N/A"},
    ),
    (
        "gpu-sram-threshold",
        {"ECC Errors/Aggregate/SRAM Threshold Exceeded": "Yes"},
        "fail",
        {"ECC Errors/Aggregate/SRAM Threshold Exceeded": None},
    ),
    (
        "gpu-row-remap",
        {"Remapped Rows/Pending": "Yes"},
        "fail",
        {"Remapped Rows/Pending": "N/A", "Remapped Rows/Remapping Failure Occurred": "N/A"},
    ),
    (
        "gpu-row-remap-banks",
        {"Remapped Rows/Bank Remap Availability Histogram/None": "1 bank(s)"},
        "warn",
        {
            "Remapped Rows/Bank Remap Availability Histogram/None": None,
            "Remapped Rows/Bank Remap Availability Histogram/Low": None,
        },
    ),
    ("gpu-memory-free", {"FB Memory Usage/Used": "40000 MiB"}, "warn", {"FB Memory Usage/Used": "N/A"}),
    (
        "gpu-hardware-slowdown",
        {"Clocks Event Reasons/HW Slowdown": "Active"},
        "fail",
        {
            "Clocks Event Reasons/HW Slowdown": None,
            "Clocks Event Reasons/HW Thermal Slowdown": None,
            "Clocks Event Reasons/HW Power Brake Slowdown": None,
        },
    ),
    (
        "gpu-software-thermal",
        {"Clocks Event Reasons/SW Thermal Slowdown": "Active"},
        "warn",
        {"Clocks Event Reasons/SW Thermal Slowdown": None},
    ),
    (
        "gpu-power-limit",
        {"GPU Power Readings/Current Power Limit": "500.00 W"},
        "fail",
        {"GPU Power Readings/Current Power Limit": "N/A"},
    ),
    ("gpu-temperature", {"Temperature/GPU T.Limit Temp": "3 C"}, "warn", {"Temperature/GPU T.Limit Temp": "N/A"}),
    (
        "gpu-application-clocks",
        {"Applications Clocks/Graphics": "1200 MHz"},
        "warn",
        {"Applications Clocks/Graphics": "N/A"},
    ),
    ("gpu-persistence", {"Persistence Mode": "Disabled"}, "warn", {"Persistence Mode": "N/A"}),
    ("gpu-compute-mode", {"Compute Mode": "Prohibited"}, "fail", {"Compute Mode": None}),
    ("gpu-mig", {"MIG Mode/Current": "Enabled"}, "fail", {"MIG Mode/Current": None}),
    ("gpu-fabric", {"Fabric/State": "In Progress"}, "fail", {"Fabric/State": None, "Fabric/Status": None}),
    ("gpu-recovery-action", {"GPU Recovery Action": "Reset"}, "fail", {"GPU Recovery Action": "N/A"}),
    (
        "gpu-pcie-width",
        {"PCI/GPU Link Info/Link Width/Current": "8x"},
        "fail",
        {"PCI/GPU Link Info/Link Width/Current": "N/A"},
    ),
    (
        "gpu-pcie-speed",
        {"PCI/GPU Link Info/PCIe Generation/Current": "3"},
        "fail",
        {"PCI/GPU Link Info/PCIe Generation/Current": "N/A"},
    ),
    ("gpu-pcie-replay", {"PCI/Replay Number Rollovers": "1"}, "warn", {"PCI/Replays Since Reset": "N/A"}),
    ("gpu-same-model", {"Product Name": "NVIDIA A100-SXM4-80GB"}, "warn", {"Product Name": "N/A"}),
]


@pytest.mark.parametrize(("check_id", "fault", "status", "taken"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_fault_is_found_a_good_host_is_ok_and_a_missing_reading_is_unknown(
    check_id: str, fault: Change, status: str, taken: Change
) -> None:
    assert result(check_id, smi()).status == "ok"
    bad = result(check_id, smi(fault))
    assert bad.status == status
    assert ADDRESSES[0] in bad.reason
    assert result(check_id, smi(taken, taken, taken, taken)).status == "unknown"
    # A reading that is missing on one GPU only: the others do not make it good.
    assert result(check_id, smi(taken)).status == "unknown"


def test_retired_pages_are_of_old_gpus_only() -> None:
    assert result("gpu-retired-pages", smi()).status == "ok"
    for change, status in (
        ({"Retired Pages/Double Bit ECC": "61"}, "fail"),
        ({"Retired Pages/Single Bit ECC": "12"}, "warn"),
        ({"Retired Pages/Pending Page Blacklist": "Yes"}, "fail"),
    ):
        assert result("gpu-retired-pages", smi(change)).status == status
    none: Change = {"Retired Pages/Double Bit ECC": "N/A", "Retired Pages/Single Bit ECC": "N/A"}
    assert result("gpu-retired-pages", smi(none, none, none, none)).status == "info"  # these remap rows


def test_an_idle_link_is_not_judged_for_its_speed() -> None:
    slow = {"PCI/GPU Link Info/PCIe Generation/Current": "1", "Utilization/GPU": "0 %"}
    found = result("gpu-pcie-speed", smi(slow, slow, slow, slow))
    assert found.status == "unknown"
    assert "idle" in found.reason


def test_errors_of_old_gpus_are_not_counted_twice() -> None:
    text = (
        "==============NVSMI LOG==============\n\nAttached GPUs : 1\nGPU 00000000:1B:00.0\n    ECC Errors\n"
        "        Volatile\n            Double Bit\n                Device Memory             : 3\n"
        "                Total                     : 3\n"
    )
    assert "0000:1b:00.0: 3" in result("gpu-ecc-uncorrectable", printed("nvidia-smi -q", text)).reason


def test_one_slow_busy_gpu_is_unlike_its_peers_and_three_idle_ones_say_nothing() -> None:
    assert result("gpu-clock-peers", smi()).status == "ok"
    assert result("gpu-clock-peers", smi({"Clocks/SM": "1400 MHz"})).status == "warn"
    idle = {"Utilization/GPU": "0 %", "Clocks/SM": "345 MHz"}
    assert result("gpu-clock-peers", smi(idle, idle, idle)).status == "unknown"


def test_one_hot_busy_gpu_is_unlike_its_peers() -> None:
    assert result("gpu-temperature-peers", smi()).status == "ok"
    assert result("gpu-temperature-peers", smi({"Temperature/GPU Current Temp": "85 C"})).status == "warn"


def test_what_is_neither_good_nor_bad_is_info() -> None:
    for change in ({}, {"Clocks Event Reasons/SW Power Cap": "Active"}):
        assert result("gpu-power-cap", smi(change)).status == "info"
    assert (
        ADDRESSES[0]
        in result("gpu-confidential-compute", smi({"Conf Compute Protected Memory Usage/Total": "1024 MiB"})).reason
    )
    assert result("gpu-confidential-compute", smi()).reason == "off"


def test_a_driver_that_does_not_answer_is_a_fault_only_where_there_are_gpus() -> None:
    gone = {"nvidia-smi -q": Output(problem="it ended with code 18: Driver/library version mismatch")}
    bus = {
        "/sys/bus/pci/devices/0000:1b:00.0/class": "0x030200\n",
        "/sys/bus/pci/devices/0000:1b:00.0/vendor": "0x10de\n",
        "/proc/self/cgroup": "0::/\n",
    }
    assert result("driver-answers", Snapshot(outputs=gone, files=bus)).status == "fail"
    absent = {"nvidia-smi -q": Output(problem="a sentence", is_missing=True)}
    empty = Snapshot(outputs=absent, problems={"/sys/bus/pci/devices": "empty"})
    assert result("driver-answers", empty).status == "info"
    assert result("driver-answers", Snapshot(outputs=absent)).status == "unknown"


def test_a_gpu_that_is_on_the_bus_only_is_missed() -> None:
    bus = {}
    for address in (*ADDRESSES, "0000:c1:00.0"):
        bus |= {f"/sys/bus/pci/devices/{address}/class": "0x030200", f"/sys/bus/pci/devices/{address}/vendor": "0x10de"}
    snapshot = Snapshot(outputs=smi().outputs, files=bus | {"/proc/self/cgroup": "0::/user.slice"})
    found = result("gpu-count", snapshot)
    assert (found.status, "0000:c1:00.0" in found.reason) == ("fail", True)
    inside = Snapshot(outputs=smi().outputs, files=bus | {"/proc/self/cgroup": "0::/docker/0123"})
    assert result("gpu-count", inside).status == "info"


@pytest.mark.parametrize(("code", "status"), [(79, "fail"), (119, "fail"), (31, "warn"), (13, "warn")])
def test_an_xid_is_of_hardware_or_of_a_program(code: int, status: str) -> None:
    line = f"[   12.5] NVRM: Xid (PCI:0000:9b:00): {code}, pid=7, name=python, something"
    found = result("gpu-xid", kernel_log(line))
    assert found.status == status
    assert str(code) in found.reason


def test_a_log_without_xid_is_ok_only_if_it_is_no_excerpt() -> None:
    assert result("gpu-xid", kernel_log()).status == "ok"
    assert result("gpu-xid", printed("kernel log", "[  3.0] eth0: link up\n")).status == "unknown"
    assert result("gpu-xid", Snapshot()).status == "unknown"


def test_a_fatal_error_of_a_switch_fails() -> None:
    line = "[ 9.0] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, {}, Link 30 LTSSM Fault Up"
    assert result("gpu-sxid", kernel_log(line.format("Fatal"))).status == "fail"
    assert result("gpu-sxid", kernel_log(line.format("Non-fatal"))).status == "warn"


LINKS = "".join(
    f"GPU {gpu}: NVIDIA A100-SXM4-80GB (UUID: GPU-0)\n" + "".join(f"\t Link {link}: 25 GB/s\n" for link in range(12))
    for gpu in range(4)
)


def test_an_inactive_link_among_active_peers_fails() -> None:
    assert result("gpu-nvlink-active", printed("nvidia-smi nvlink -s", LINKS)).status == "ok"
    bad = LINKS.replace("\t Link 3: 25 GB/s\n", "\t Link 3: <inactive>\n", 1)
    found = result("gpu-nvlink-active", printed("nvidia-smi nvlink -s", bad))
    assert (found.status, "GPU 0: 11" in found.reason) == ("fail", True)


@pytest.mark.parametrize("lines", range(2, 52))
def test_links_of_a_text_that_was_cut_off_are_never_faults(lines: int) -> None:
    cut = "".join(LINKS.splitlines(keepends=True)[:lines])
    assert result("gpu-nvlink-active", printed("nvidia-smi nvlink -s", cut)).status in ("ok", "info", "unknown")


def test_links_that_are_all_inactive_fail_on_a_model_that_has_them() -> None:
    text = "GPU 0: {} (UUID: GPU-0)\nNVML: Unable to retrieve NVLink information as all links are inActive\n"
    soldered = printed("nvidia-smi nvlink -s", text.format("NVIDIA A100-SXM4-80GB"))
    assert result("gpu-nvlink-active", soldered).status == "fail"
    assert result("gpu-nvlink-active", printed("nvidia-smi nvlink -s", text.format("NVIDIA A10"))).status == "info"


def test_a_slow_link_and_recoveries_are_told() -> None:
    slow = LINKS.replace("25 GB/s", "12.5 GB/s", 1)
    assert result("gpu-nvlink-speed", printed("nvidia-smi nvlink -s", LINKS)).status == "ok"
    assert result("gpu-nvlink-speed", printed("nvidia-smi nvlink -s", slow)).status == "warn"
    errors = "GPU 0: NVIDIA H100 (UUID: GPU-0)\n\t Link 0: Replay Errors: {}\n\t Link 0: Recovery Errors: {}\n"
    for counts, status in (((0, 0), "ok"), ((7, 0), "info"), ((0, 1), "warn")):
        assert result("gpu-nvlink-errors", printed("nvidia-smi nvlink -e", errors.format(*counts))).status == status


def test_a_gpu_without_nvlink_among_nvlinked_ones_fails() -> None:
    assert result("gpu-nvlink-matrix", printed("nvidia-smi topo -m", HEALTHY_MATRIX)).status == "ok"
    rows = HEALTHY_MATRIX.splitlines()
    rows[1] = rows[1].replace("NV18", "NODE")
    for number in (2, 3, 4):
        rows[number] = rows[number].replace("NV18", "NODE", 1)
    found = result("gpu-nvlink-matrix", printed("nvidia-smi topo -m", "\n".join(rows) + "\n"))
    assert (found.status, "GPU0: 0" in found.reason) == ("fail", True)


@pytest.mark.parametrize(
    ("cell", "status"), [("OK", "ok"), ("CNS", "warn"), ("GNS", "info"), ("DR", "warn"), ("U", "unknown")]
)
def test_peer_to_peer_is_told_from_what_the_model_lacks(cell: str, status: str) -> None:
    text = f" \tGPU0\tGPU1\n GPU0\tX\t{cell}\n GPU1\t{cell}\tX\n\nLegend:\n"
    assert result("gpu-peer-to-peer", printed("nvidia-smi topo -p2p r", text)).status == status


def test_gpu_checks_of_an_nccl_log() -> None:
    p2p = "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
    assert result("nccl-log-transport", nccl_log(p2p)).status == "ok"
    assert result("nccl-log-transport", nccl_log("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct")).status == "warn"
    line = "Pattern 4, crossNic 0, nChannels 2, bw 12.0/12.0, type {}/PIX, sameChannels 1"
    assert result("nccl-log-paths", nccl_log(line.format("NVL"))).status == "ok"
    assert result("nccl-log-paths", nccl_log(line.format("SYS"))).status == "warn"
    fabric = "MNNVL busId 0x{} fabric UUID {} cliqueId 0x1 state {} healthMask 0x0"
    for lines, status in (
        ((fabric.format(1, "a1.b2", 3),), "ok"),
        ((fabric.format(1, "a1.b2", 3), fabric.format(2, "a1.b2", 2)), "fail"),
        ((fabric.format(1, "0.0", 3),), "info"),
    ):
        assert result("nccl-log-fabric", nccl_log(*lines)).status == status
