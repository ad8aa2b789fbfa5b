"""`dmesg`, `/dev/kmsg`, `journalctl -k` or syslog -> events of hardware: Xid, AER, machine checks, OOM, links.

Lines are counted as they are; a log that was rotated, or a ring buffer that wrapped, holds only what is left.
"""

from __future__ import annotations

import re

import msgspec

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
_SXID = re.compile(r"nvidia-nvswitch\S* SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
_CARRIER = re.compile(r"(\S+?): (?:lost carrier|[Ll]ink (?:is )?[Dd]own|NIC Link is Down)", re.IGNORECASE)
_PATTERNS: dict[str, re.Pattern[str]] = {
    "aer_fatal": re.compile(
        r"AER: .*(?:Uncorrected|Uncorrectable|\(Fatal\)|fatal error)|PCIe Bus Error: severity=Uncorrect"
    ),
    "aer_corrected": re.compile(r"AER: .*Correct(?:ed|able)|PCIe Bus Error: severity=Corrected"),
    "machine_check": re.compile(
        r"mce: \[Hardware Error\]|Machine [Cc]heck|EDAC .* UE |Uncorrected hardware memory error"
    ),
    "memory_corrected": re.compile(r"EDAC .* CE |Corrected error, no action required"),
    "oom": re.compile(r"Out of memory: Killed process|oom-kill:|Memory cgroup out of memory"),
    "hung_task": re.compile(r"INFO: task .* blocked for more than \d+ seconds"),
    "thermal": re.compile(r"(?:temperature above threshold|cpu clock throttled)"),
    "io_error": re.compile(
        r"I/O error, dev|blk_update_request: .*error|EXT4-fs error|XFS .*[Cc]orruption|nvme\S*: I/O \d+ .*timeout"
    ),
    "nfs": re.compile(r"nfs: server \S+ not responding"),
    "segfault_nccl": re.compile(r"segfault at .* in libnccl"),
    "peermem": re.compile(r"nvidia[-_]peermem .*ERROR"),
    "fell_off_bus": re.compile(r"GPU has fallen off the bus"),
    "read_only": re.compile(r"Remounting filesystem read-only"),
}

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
    num_lines: int
    has_start: bool  # the kernel's first line is there

    @property
    def is_excerpt(self) -> bool:
        """True where so little is there that a fault which it lacks may well have happened."""
        return self.num_lines < _FEWEST_LINES and not self.has_start


def parse_kernel_log(text: str) -> KernelLog:
    xids: list[GpuEvent] = []
    sxids: list[GpuEvent] = []
    losses: dict[str, int] = {}
    lines: dict[str, list[str]] = {kind: [] for kind in _PATTERNS}
    all_lines = text.splitlines()
    for line in all_lines:
        for pattern, events in ((_XID, xids), (_SXID, sxids)):
            if match := pattern.search(line):
                events.append(GpuEvent(address=match[1].lower(), code=int(match[2]), text=(match[3] or "").strip()))
        if match := _CARRIER.search(line):
            losses[match[1]] = losses.get(match[1], 0) + 1
        for kind, pattern in _PATTERNS.items():
            if pattern.search(line):
                lines[kind].append(line.strip())
    return KernelLog(
        xids=tuple(xids),
        sxids=tuple(sxids),
        link_losses=losses,
        lines={kind: tuple(found) for kind, found in lines.items()},
        num_lines=len(all_lines),
        has_start="Linux version " in text,
    )
