"""Read `/proc/diskstats`, and what a control group allows of each disk.

In: the texts. Out: `Counts` and limits by device number, e.g. `8:0`. Times are milliseconds in the file, and sectors
have 512 bytes. A request that a control group delays has not reached the disk: its wait is not in the disk's
times. Sources: Documentation/admin-guide/iostats.rst, cgroup-v2.rst (`io.max`) and
cgroup-v1/blkio-controller.rst of Linux.
"""

from __future__ import annotations

import re

import msgspec

from flatout.storage.counts import MAX_DIGITS, Counts

_SECTOR_BYTES = 512
_MS_PER_S = 1e3
_MIN_COLUMNS = 8
_PARTITION = re.compile(r"^(?P<disk>.*?\D)p?\d+$")
_NUMBERED = re.compile(r"^(?P<disk>(?:nvme\d+n\d+|mmcblk\d+|loop\d+|nbd\d+))p\d+$")


class Disks(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of all block devices by number, and their names."""

    counts: dict[str, Counts]
    numbers: dict[str, str]  # by name

    def number_of(self, device: str, source: str) -> str | None:
        """Return the number of a mount's device: as the kernel's list has it, or by the name of its source."""
        if device in self.counts:
            return device
        return self.numbers.get(source.rpartition("/")[2])

    def disk_of(self, number: str) -> str:
        """Return the number of the disk of a partition; limits are set for disks."""
        names = {of: name for name, of in self.numbers.items()}
        name = names.get(number, "")
        match = _NUMBERED.match(name) or _PARTITION.match(name)
        return self.numbers.get(match["disk"], number) if match else number


def read_diskstats(text: str) -> Disks:
    counts, numbers = {}, {}
    for line in text.splitlines():
        words = line.split()
        columns = words[:2] + words[3:]
        if len(words) < _MIN_COLUMNS or not all(map(_is_number, columns)):
            continue
        number = f"{words[0]}:{words[1]}"
        numbers[words[2]] = number
        reads, _, sectors, ms_reading, writes = map(float, words[3:8])
        counts[number] = Counts(
            num_reads=reads,
            read_bytes=sectors * _SECTOR_BYTES,
            read_s=ms_reading / _MS_PER_S,
            num_metadata=0.0,
            num_requests=reads + writes,
        )
    return Disks(counts=counts, numbers=numbers)


class DiskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a control group allows to read; by device number."""

    bytes_per_s: dict[str, float]
    requests_per_s: dict[str, float]


def read_limits(io_max: str, read_bps: str, read_iops: str) -> DiskLimits:
    """Return the limits of version 2 (`io.max`) and of version 1 (`blkio.throttle.read_*_device`)."""
    bytes_per_s, requests_per_s = _pairs(read_bps), _pairs(read_iops)
    for line in io_max.splitlines():
        number, *settings = line.split() or [""]
        values = dict(setting.partition("=")[::2] for setting in settings)
        if _is_number(values.get("rbps", "max")):
            bytes_per_s[number] = float(values["rbps"])
        if _is_number(values.get("riops", "max")):
            requests_per_s[number] = float(values["riops"])
    return DiskLimits(bytes_per_s=bytes_per_s, requests_per_s=requests_per_s)


def _is_number(word: str) -> bool:
    return word.isdecimal() and len(word) <= MAX_DIGITS


def _pairs(text: str) -> dict[str, float]:
    lines = [line.split() for line in text.splitlines()]
    return {words[0]: float(words[1]) for words in lines if len(words) == 2 and _is_number(words[1])}
