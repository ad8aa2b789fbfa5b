"""`dmesg`, `/dev/kmsg`, `journalctl -k` or syslog -> events of hardware: Xid, AER, machine checks, OOM, links.

Lines are counted as they are; a log that was rotated, or a ring buffer that wrapped, holds only what is left.
"""

from __future__ import annotations

import re

import msgspec

# What begins a line of dmesg (also -T, -d, -x, -r), /dev/kmsg, journalctl and syslog.
STAMP = re.compile(
    r"(?:kern\s*:|(?:<\d+>)?\[ *\+?\d+\.\d+\] ?|\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\]|\d+,\d+,\d+,|"
    r"[^\W\d]{3,4}\.? +\d+ \d\d:\d\d:\d\d(?:\.\d+)? \S+ \S+: |"
    r"[^\W\d]{2,4} \d{4}-\d\d-\d\d [\d:.]+ \S+ \S+ \S+: |"
    r"\d{4}-\d\d-\d\dT[\d:]+,\d+\S* |\d{4}-\d\d-\d\dT\S+ \S+ (?:kernel|\S+\[\d+\]): )"
)
# What only the kernel writes, whatever stands before it.
MARK = re.compile(
    r"NVRM: Xid \(|NVRM: .*fallen off the bus|nvidia-nvswitch\S* SXid|\bAER: |EDAC MC\d|mce: \[Hardware Error\]"
)
# At the end of the text a number may be cut off: 11 of 119.
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?!\d|\Z)(?:, (.*))?")
_OFF_BUS = re.compile(r"NVRM: GPU (?:at PCI:)?([0-9a-fA-F:.]+): GPU has fallen off the bus")
_OFF_BUS_LINES = re.compile(  # three lines, of which dmesg and journalctl indent all but the first
    r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]+)(?=\s)(?:.*\n){1,2}?.*NVRM: fallen off the bus and is not responding"
)
_SXID = re.compile(r"nvidia-nvswitch\S* SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?!\d|\Z)(?:, (.*))?")
_CARRIER = re.compile(
    r"(?:([\w.@-]+): (?:lost carrier|link (?:is )?down|Port: \d+ Link DOWN)|([\w.@-]+):? NIC Link is Down)",
    re.IGNORECASE,
)
_MISSED = re.compile(r"Missed (\d+) kernel messages|Suppressed (\d+) messages from kernel", re.IGNORECASE)
_PATTERNS: dict[str, re.Pattern[str]] = {
    "aer_fatal": re.compile(r"(?:AER: .*|PCIe Bus Error: severity=)Uncorrect\w+ \(Fatal\)", re.IGNORECASE),
    "aer_nonfatal": re.compile(
        r"(?:AER: .*|PCIe Bus Error: severity=)Uncorrect\w+ (?:\(Non-Fatal\)|error)", re.IGNORECASE
    ),
    "slot_down": re.compile(r"pciehp.*Slot\(.*\): (?:Link Down|Card not present)"),
    "aer_corrected": re.compile(r"AER: .*Correct(?:ed|able)|PCIe Bus Error: severity=Corrected"),
    "machine_check": re.compile(
        r"Machine Check Exception|Processor context corrupt|EDAC .* UE |Uncorrected (?:hardware memory )?error|"
        r"\[Hardware Error\]: Uncorrected|Memory failure: 0x\w+: .*(?:Killing|corrupt)"
    ),
    # `events logged` is printed for corrected ones alike, so that it alone is no fault.
    "memory_corrected": re.compile(r"EDAC .* CE |Corrected error, no action required|Machine check events logged"),
    "oom": re.compile(r"Out of memory: Killed process|oom-kill:|Memory cgroup out of memory"),
    "hung_task": re.compile(r"INFO: task .* blocked for more than \d+ seconds"),
    "thermal": re.compile(r"(?:temperature above threshold|cpu clock throttled)"),
    "io_error": re.compile(
        r"I/O error, dev|blk_update_request: .*error|EXT4-fs error|XFS .*[Cc]orruption|"
        r"nvme\S*: (?:I/O \d+ .*timeout|queue \d+: timeout)"
    ),
    "nfs": re.compile(r"nfs: server \S+ not responding"),
    "segfault_nccl": re.compile(r"segfault at .* in libnccl"),
    "peermem": re.compile(r"nvidia[-_]peermem .*ERROR"),
    "crash": re.compile(
        r"Kernel panic - |BUG: (?:unable to handle|kernel NULL pointer)|Oops: \d|general protection fault.*\[#\d"
    ),
    "nic_health": re.compile(r"mlx\d_core .*(?:health compromised|Health issue observed|irisc not responding)"),
    "cable": re.compile(r"Port module event\[error\]"),
    "read_only": re.compile(r"Remounting filesystem read-only"),
}

_BANK = re.compile(r"\[Hardware Error\]: .*Bank \d+: ([0-9a-f]{16})")
_UNCORRECTED = 1 << 61  # of MCi_STATUS; Intel SDM volume 3, 17.3.2.2, and AMD64 APM volume 2, 9.3.2.2
# Errors that the firmware reports come in several lines: first how bad it is, then of what.
_FIRMWARE_SEVERITY = re.compile(r"\[Hardware Error\]: event severity: (\w+)")
_FIRMWARE_SECTION = re.compile(r"\[Hardware Error\]: +section_type: (.+)")
_FIRMWARE_DEVICE = re.compile(r"\[Hardware Error\]: +device_id: (\S+)")
_FEWEST_LINES = 200


class GpuEvent(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    code: int
    text: str


class KernelLog(msgspec.Struct, frozen=True, kw_only=True):
    xids: tuple[GpuEvent, ...]
    sxids: tuple[GpuEvent, ...]
    link_losses: dict[str, int]  # interface -> times that its carrier was lost
    lines: dict[str, tuple[str, ...]]  # kind -> the lines that say it
    off_bus: tuple[str, ...]  # addresses of GPUs that answer no more, also where no Xid says so
    num_lines: int  # of a log; text around it does not count
    num_missed: int  # messages that the journal says it lost
    has_start: bool  # the kernel's first line is there

    @property
    def is_excerpt(self) -> bool:
        """True where so little is there that a fault which it lacks may well have happened."""
        return (self.num_lines < _FEWEST_LINES and not self.has_start) or self.num_missed > 0


def _firmware_kind(section: str, severity: str) -> str | None:
    """Where an error that the firmware reports belongs (UEFI, common platform error record); `info` ones nowhere."""
    is_bad = severity in ("fatal", "recoverable")
    if "PCIe" in section:
        fatal = "aer_fatal" if severity == "fatal" else "aer_nonfatal"
        return fatal if is_bad else "aer_corrected" if severity == "corrected" else None
    return "machine_check" if is_bad else "memory_corrected" if severity == "corrected" else None


def kernel_lines(text: str) -> str:
    """The lines of a kernel log in a text of other tools; empty where none says a fault of hardware."""
    if not MARK.search(text):
        return ""
    return "".join(line for line in text.splitlines(keepends=True) if STAMP.match(line) or MARK.search(line))


def parse_kernel_log(text: str) -> KernelLog:
    xids: list[GpuEvent] = []
    sxids: list[GpuEvent] = []
    losses: dict[str, int] = {}
    lines: dict[str, list[str]] = {kind: [] for kind in _PATTERNS}
    all_lines = text.splitlines(keepends=True)
    severity, of_firmware = "", None
    for line in all_lines:
        for pattern, events in ((_XID, xids), (_SXID, sxids)):
            if match := pattern.search(line):
                events.append(GpuEvent(address=match[1].lower(), code=int(match[2]), text=(match[3] or "").strip()))
        is_down = "own" in line or "carrier" in line or "DOWN" in line  # the pattern alone is slow
        if is_down and (match := _CARRIER.search(line)):
            name = match[1] or match[2]
            losses[name] = losses.get(name, 0) + 1
        for kind, pattern in _PATTERNS.items():
            if pattern.search(line):
                lines[kind].append(line.strip())
        if match := _BANK.search(line):
            bad = int(match[1], 16) & _UNCORRECTED
            lines["machine_check" if bad else "memory_corrected"].append(line.strip())
        if match := _FIRMWARE_SEVERITY.search(line):
            severity = match[1]
        if match := _FIRMWARE_SECTION.search(line):
            of_firmware = _firmware_kind(match[1], severity)
            if of_firmware:
                lines[of_firmware].append(line.strip())
        elif (match := _FIRMWARE_DEVICE.search(line)) and of_firmware:
            lines[of_firmware][-1] += f", device {match[1]}"
    return KernelLog(
        xids=tuple(xids),
        sxids=tuple(sxids),
        link_losses=losses,
        lines={kind: tuple(found) for kind, found in lines.items()},
        off_bus=tuple(
            dict.fromkeys(
                match[1].lower() for pattern in (_OFF_BUS, _OFF_BUS_LINES) for match in pattern.finditer(text)
            )
        ),
        num_lines=sum(STAMP.match(line) is not None for line in all_lines),
        num_missed=sum(int(first or second) for first, second in _MISSED.findall(text)),
        has_start="Linux version " in text,
    )
