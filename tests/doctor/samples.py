"""Small synthetic texts of tools and of the kernel, typed for the tests: one host with four GPUs, and parts of it."""

from __future__ import annotations

from flatout.doctor.check import run_check
from flatout.doctor.checks import CHECKS
from flatout.doctor.machine import KERNEL_LOG, NCCL_LOG, Machine
from flatout.records.doctor import CheckResult
from flatout.records.snapshot import Output, Snapshot

BY_ID = {check.id: check for check in CHECKS}


def result(check_id: str, snapshot: Snapshot) -> CheckResult:
    return run_check(BY_ID[check_id], Machine(snapshot))


def outputs(**texts: str) -> dict[str, Output]:
    return {name: Output(text=text) for name, text in texts.items()}


def printed(name: str, text: str) -> Snapshot:
    return Snapshot(outputs={name: Output(text=text)})


def kernel_log(*lines: str) -> Snapshot:
    """A whole log, from the start of the kernel."""
    return printed(KERNEL_LOG, "\n".join(["[    0.000000] Linux version 6.8.0 (builder)", *lines]) + "\n")


def nccl_log(*lines: str, started: bool = True) -> Snapshot:
    head = "node-a:10:20 [0] NCCL INFO "
    texts = [line if "NCCL " in line else head + line for line in lines]
    if started:
        texts += [head + f"ncclCommInitRank comm 0x1 rank {rank} nranks 2 - Init COMPLETE" for rank in (0, 1)]
    return printed(NCCL_LOG, "\n".join(texts) + "\n")


GOOD_GPU = {
    "Product Name": "NVIDIA H100 80GB HBM3",
    "Persistence Mode": "Enabled",
    "MIG Mode": {"Current": "Disabled", "Pending": "Disabled"},
    "VBIOS Version": "96.00.01.00.01",
    "GPU Recovery Action": "None",
    "PCI": {
        "GPU Link Info": {
            "PCIe Generation": {"Max": "5", "Current": "5"},
            "Link Width": {"Max": "16x", "Current": "16x"},
        },
        "Replays Since Reset": "0",
        "Replay Number Rollovers": "0",
    },
    "Clocks Event Reasons": {
        "SW Power Cap": "Not Active",
        "HW Slowdown": "Not Active",
        "HW Thermal Slowdown": "Not Active",
        "HW Power Brake Slowdown": "Not Active",
        "SW Thermal Slowdown": "Not Active",
    },
    "FB Memory Usage": {"Total": "81559 MiB", "Used": "4 MiB"},
    "Conf Compute Protected Memory Usage": {"Total": "0 MiB"},
    "Compute Mode": "Default",
    "Utilization": {"GPU": "90 %"},
    "ECC Errors": {
        "Volatile": {"SRAM Correctable": "0", "SRAM Uncorrectable Parity": "0", "DRAM Uncorrectable": "0"},
        "Aggregate": {"SRAM Correctable": "3", "SRAM Threshold Exceeded": "No"},
    },
    "Remapped Rows": {
        "Pending": "No",
        "Remapping Failure Occurred": "No",
        "Bank Remap Availability Histogram": {"Max": "2560 bank(s)", "Low": "0 bank(s)", "None": "0 bank(s)"},
    },
    "Retired Pages": {"Single Bit ECC": "0", "Double Bit ECC": "0", "Pending Page Blacklist": "No"},
    "Temperature": {"GPU Current Temp": "60 C", "GPU T.Limit Temp": "25 C"},
    "GPU Power Readings": {"Current Power Limit": "700.00 W", "Default Power Limit": "700.00 W"},
    "Clocks": {"SM": "1980 MHz"},
    "Applications Clocks": {"Graphics": "1980 MHz"},
    "Default Applications Clocks": {"Graphics": "1980 MHz"},
    "Fabric": {"State": "Completed", "Status": "Success"},
}
ADDRESSES = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:9d:00.0")


def smi(*changes: dict[str, str | None], num: int = 4) -> Snapshot:
    """`nvidia-smi -q` of `num` good GPUs; the first ones changed: path -> value, None takes the line away."""
    lines = ["==============NVSMI LOG==============", ""]
    lines += [
        "Driver Version                            : 550.54.15",
        "CUDA Version                              : 12.4",
    ]
    lines += [f"Attached GPUs                             : {num}"]
    for number in range(num):
        lines.append(f"GPU 0000{ADDRESSES[number].upper()}")
        lines += _lines(GOOD_GPU, changes[number] if number < len(changes) else {}, "", 4)
        lines.append("")
    return printed("nvidia-smi -q", "\n".join(lines) + "\n")


def _lines(values: dict[str, object], changes: dict[str, str | None], path: str, indent: int) -> list[str]:
    found = []
    for name, value in values.items():
        whole = f"{path}/{name}" if path else name
        if isinstance(value, dict):
            found += [" " * indent + name, *_lines(value, changes, whole, indent + 4)]
        elif (text := changes.get(whole, value)) is not None:
            found.append(f"{' ' * indent}{name:{max(42 - indent, len(name))}} : {text}")
    return found


HEALTHY_MATRIX = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tNV18\tNV18\tPIX\tSYS\t0-31\t0\tN/A
GPU1\tNV18\t X \tNV18\tNV18\tPXB\tSYS\t0-31\t0\tN/A
GPU2\tNV18\tNV18\t X \tNV18\tSYS\tPIX\t32-63\t1\tN/A
GPU3\tNV18\tNV18\tNV18\t X \tSYS\tPXB\t32-63\t1\tN/A
NIC0\tPIX\tPXB\tSYS\tSYS\t X \tSYS\t\t\t
NIC1\tSYS\tSYS\tPIX\tPXB\tSYS\t X \t\t\t

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""


def lspci_bridge(address: str, below: str, *, root: bool = False, acs: str = "", width: str = "x16") -> str:
    kind = "Root Port (Slot+)" if root else "Downstream Port"
    text = f"{address} PCI bridge: Maker Switch (rev b0)\n\tNUMA node: 0\n"
    text += f"\tBus: primary=00, secondary={below}, subordinate=20, sec-latency=0\n"
    text += f"\tCapabilities: [40] Express (v2) {kind}, MSI 00\n"
    text += "\t\tLnkCap:\tPort #1, Speed 32GT/s, Width x16, ASPM not supported\n"
    text += f"\t\tLnkSta:\tSpeed 32GT/s, Width {width}\n"
    return text + (f"\t\tACSCtl:\tSrcValid+ ReqRedir{acs} CmpltRedir{acs}\n" if acs else "")


def lspci_gpu(address: str, width: str = "x16") -> str:
    return (
        f"{address} 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n\tNUMA node: 0\n"
        f"\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width {width}\n"
    )


def sysfs(path: str, **texts: str) -> dict[str, str]:
    return {f"{path}/{name.replace('__', '/')}": text + "\n" for name, text in texts.items()}


def rdma_port(device: str, **changes: str) -> dict[str, str]:
    base = f"/sys/class/infiniband/{device}"
    good = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "counters__link_downed": "0",
        "counters__symbol_error": "0",
        "counters__link_error_recovery": "0",
        "hw_counters__out_of_sequence": "0",
    }
    return sysfs(f"{base}/ports/1", **(good | changes)) | sysfs(base, fw_ver="28.39.1002", board_id="MT_0000000838")
