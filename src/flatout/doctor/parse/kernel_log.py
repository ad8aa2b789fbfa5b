"""Parse `dmesg`, `/dev/kmsg`, `journalctl -k` or syslog into hardware events: Xid, AER, machine checks, OOM, links.

Every line counts once. A rotated log, or a ring buffer that wrapped, holds only the latest events.
"""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from flatout.doctor.parse.kernel_errors import OtherError, OtherErrors
from flatout.doctor.parse.kernel_patterns import PATTERNS

# The beginning of a line of dmesg (also -T, -d, -x, -r), /dev/kmsg, journalctl or syslog.
STAMP = re.compile(
    r"(?:kern\s*:|[a-z\d]+ *:[a-z]+ *: \[|(?:<\d+>)?\[ *\+?\d+\.\d+\] ?|\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\]|\d+,\d+,\d+,|"
    r"[^\W\d]{3,4}\.? +\d+ \d\d:\d\d:\d\d(?:\.\d+)? \S+ \S+: |"
    r"[^\W\d]{2,4} \d{4}-\d\d-\d\d [\d:.]+ \S+ \S+ \S+: |"
    r"\d{4}-\d\d-\d\dT[\d:]+,\d+\S* |\d{4}-\d\d-\d\dT\S+ \S+ (?:kernel|\S+\[\d+\]): )"
)
# Text that only the kernel writes, whatever precedes it.
MARK = re.compile(
    r"NVRM: Xid \(|NVRM: .*fallen off the bus|nvidia-nvswitch\S* SXid|\bAER: |EDAC MC\d|mce: \[Hardware Error\]"
)
# A number at the end of the text may be truncated: 11 of 119.
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?!\d|\Z)(?:, (.*))?")
_OFF_BUS = re.compile(r"NVRM: GPU (?:at PCI:)?([0-9a-fA-F:.]+): GPU has fallen off the bus")
_OFF_BUS_LINES = re.compile(  # three lines; dmesg and journalctl indent all but the first
    r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]+)(?=\s)(?:.*\n){1,2}?.*NVRM: fallen off the bus and is not responding"
)
_SXID = re.compile(r"nvidia-nvswitch\S* SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?!\d|\Z)(?:, (.*))?")
_CARRIER = re.compile(
    r"(?:([\w.@-]+): (?:lost carrier|link (?:is )?down|Port: \d+ Link DOWN)|([\w.@-]+):? NIC Link is Down)",
    re.IGNORECASE,
)
_MISSED = re.compile(r"Missed (\d+) kernel messages|Suppressed (\d+) messages from kernel", re.IGNORECASE)
_BANK = re.compile(r"\[Hardware Error\]: .*Bank \d+: ([0-9a-f]{16})")
_UNCORRECTED = 1 << 61  # of MCi_STATUS; Intel SDM volume 3, 17.3.2.2, and AMD64 APM volume 2, 9.3.2.2
# An error that the firmware reports takes several lines: its severity, then its section, then its device.
_FIRMWARE_SEVERITY = re.compile(r"\[Hardware Error\]: event severity: (\w+)")
_FIRMWARE_SECTION = re.compile(r"\[Hardware Error\]: +section_type: (.+)")
_FIRMWARE_DEVICE = re.compile(r"\[Hardware Error\]: +device_id: (\S+)")
_FIRMWARE_PCIE_KINDS = {"fatal": "aer_fatal", "recoverable": "aer_nonfatal", "corrected": "aer_corrected"}
_FIRMWARE_OTHER_KINDS = {"fatal": "machine_check", "recoverable": "machine_check", "corrected": "memory_corrected"}
# Lines of faults that are read with their neighbours, or counted elsewhere.
_KNOWN_OTHERWISE = re.compile(r"\[Hardware Error\]|fallen off the bus|NVRM: The NVIDIA GPU|Missed \d+ kernel|NVRM: Xid")
_FEWEST_LINES = 200


class GpuEvent(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    code: int
    text: str


class KernelLog(msgspec.Struct, frozen=True, kw_only=True):
    xids: tuple[GpuEvent, ...]
    sxids: tuple[GpuEvent, ...]
    link_losses: dict[str, int]  # interface -> how often it lost its carrier
    lines: dict[str, tuple[str, ...]]  # kind of event -> its lines
    off_bus: tuple[str, ...]  # addresses of GPUs that have fallen off the bus, also without an Xid
    other_errors: tuple[OtherError, ...]  # lines at error level that do not belong to any kind, the gravest first
    num_lines: int  # lines of the log; text around it does not count
    num_missed: int  # messages that the journal reports as lost
    has_start: bool  # the kernel's first line is present

    @property
    def is_excerpt(self) -> bool:
        """Whether the log is so short that a fault missing from it may still have happened."""
        is_short = self.num_lines < _FEWEST_LINES and not self.has_start
        return is_short or self.num_missed > 0


def kernel_lines(text: str) -> str:
    """Return the kernel log's lines from the text of other tools; empty if none reports a hardware fault."""
    if not MARK.search(text):
        return ""
    return "".join(line for line in text.splitlines(keepends=True) if STAMP.match(line) or MARK.search(line))


def parse_kernel_log(text: str) -> KernelLog:
    events = _Events()
    lines = text.splitlines(keepends=True)
    for line in lines:
        events.read(line)
    return KernelLog(
        xids=tuple(events.xids),
        sxids=tuple(events.sxids),
        link_losses=dict(events.link_losses),
        lines={kind: tuple(matching) for kind, matching in events.lines.items()},
        off_bus=_off_bus(text),
        other_errors=events.other_errors.in_order(),
        num_lines=sum(STAMP.match(line) is not None for line in lines),
        num_missed=sum(int(missed or suppressed) for missed, suppressed in _MISSED.findall(text)),
        has_start="Linux version " in text,
    )


class _Events:
    """The events of the lines read so far."""

    def __init__(self) -> None:
        self.xids: list[GpuEvent] = []
        self.sxids: list[GpuEvent] = []
        self.link_losses: Counter[str] = Counter()
        self.lines: dict[str, list[str]] = {kind: [] for kind in PATTERNS}
        self.other_errors = OtherErrors()
        self._firmware_severity = ""
        self._firmware_kind: str | None = None

    def read(self, line: str) -> None:
        if not self._is_of_a_kind(line) and not _KNOWN_OTHERWISE.search(line):
            self.other_errors.read(line)
        self._read_firmware_error(line)

    def _is_of_a_kind(self, line: str) -> bool:
        """Read the line if it belongs to a known kind; return whether it does."""
        xid, sxid = _XID.search(line), _SXID.search(line)
        if xid:
            self.xids.append(_gpu_event(xid))
        if sxid:
            self.sxids.append(_gpu_event(sxid))
        kinds = [kind for kind, pattern in PATTERNS.items() if pattern.search(line)]
        for kind in kinds:
            self.lines[kind].append(line.strip())
        is_carrier_loss = self._read_carrier_loss(line)
        return bool(xid or sxid or kinds or is_carrier_loss or self._read_bank(line))

    def _read_bank(self, line: str) -> bool:
        """Read the bank of a machine check; return whether the line has one."""
        if match := _BANK.search(line):
            is_uncorrected = int(match[1], 16) & _UNCORRECTED
            self.lines["machine_check" if is_uncorrected else "memory_corrected"].append(line.strip())
            return True
        return False

    def _read_carrier_loss(self, line: str) -> bool:
        if not any(word in line for word in ("own", "carrier", "DOWN")):
            return False  # matching the pattern alone would be slow
        match = _CARRIER.search(line)
        if match:
            self.link_losses[match[1] or match[2]] += 1
        return match is not None

    def _read_firmware_error(self, line: str) -> None:
        if match := _FIRMWARE_SEVERITY.search(line):
            self._firmware_severity = match[1]
        if match := _FIRMWARE_SECTION.search(line):
            self._firmware_kind = _firmware_kind(match[1], self._firmware_severity)
            if self._firmware_kind:
                self.lines[self._firmware_kind].append(line.strip())
            return
        match = _FIRMWARE_DEVICE.search(line)
        if match and self._firmware_kind:
            self.lines[self._firmware_kind][-1] += f", device {match[1]}"


def _gpu_event(match: re.Match[str]) -> GpuEvent:
    return GpuEvent(address=match[1].lower(), code=int(match[2]), text=(match[3] or "").strip())


def _firmware_kind(section: str, severity: str) -> str | None:
    """Return the kind of an error that the firmware reports (UEFI, common platform error record); None for `info`."""
    kinds = _FIRMWARE_PCIE_KINDS if "PCIe" in section else _FIRMWARE_OTHER_KINDS
    return kinds.get(severity)


def _off_bus(text: str) -> tuple[str, ...]:
    """Return the addresses of GPUs that have fallen off the bus, each once."""
    matches = (*_OFF_BUS.finditer(text), *_OFF_BUS_LINES.finditer(text))
    return tuple(dict.fromkeys(match[1].lower() for match in matches))
