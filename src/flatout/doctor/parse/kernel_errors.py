"""Count error-level lines of a kernel log that do not belong to any known kind, so that they do not count as healthy.

The level is the log's own (`dmesg -x`, `dmesg -r`, `/dev/kmsg`); a log that does not give it is judged by words.
"""

from __future__ import annotations

import re

import msgspec

_LEVELS = {"emerg": 0, "alert": 1, "crit": 2, "err": 3}
_ERROR_LEVEL, _CRITICAL_LEVEL = 3, 2
# `kern  :err   : [...]`, `<3>[...]`, `3,1234,5678,-;...`
_LEVEL = re.compile(r"(?:[a-z0-9]+ *:(?P<name>[a-z]+) *:|<(?P<number>\d+)>|(?P<kmsg>\d+),\d+,\d+,)")
# The prefix of a message: the level, then the time, then the host and the program of a syslog.
_BEFORE = re.compile(
    r"^(?:[a-z0-9]+ *:[a-z]+ *: *|<\d+>|\d+,\d+,\d+,[^;]*;)?"
    r"(?:\[ *\+?[\d.]+\] ?|\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\] ?|[^\W\d]{3} +\d+ [\d:.]+ \S+ \S+: |"
    r"\d{4}-\d\d-\d\dT\S+ (?:\S+ \S+: )?)?(?:\[ *[\d.]+\] ?)?"
)
_WORDS = re.compile(
    r"\b(?:error|errors|err|fail|fails|failed|failure|fatal|timeout|timed out|panic|corrupt\w*|BUG|oops|stall\w*|stuck|"
    r"hung|hang|not responding|unresponsive|unable to|cannot|critical|abort\w*|uncorrect\w*|dead|lost|broken|"
    r"unrecover\w*|irrecoverable|overcurrent|fault(?:y|ed)?|giving up|offline[d]?)\b",
    re.IGNORECASE,
)
# Lines with such words that the kernel of a healthy machine writes, mostly as it starts.
_HARMLESS = re.compile(
    r"ACPI|Error Record Serialization|HEST|BERT|ERST|Errors collector|errors=|error(?:s)? 0\b|"
    r"\bno (?:error|fault)|0 errors|AER enabled|enabled with|PCC subspace|regulatory|X\.509|PKCS|i8042|\btpm|ipmi|"
    r"Command line:|Kernel command line|efivars|Direct firmware load|firmware: failed to load|"
    r"BAR \d+.*(?:no space|failed to assign)|can't (?:claim|assign)|failed to assign|page.?fault|"
    r"fault (?:handler|injection|recording)|Spectre|Speculat|mitigat|DMAR|"
    r"(?:collector|support is|subsystem|driver) initialized|loading out-of-tree|taint\w* kernel|"
    r"module verification|audit|systemd\[|drop.?caches|usb \d|hid-|nouveau|snd_|bluetooth|"
    r"^(?!.*(?:nvidia|amdgpu)).*\bdrm\b|vfio|overlayfs|cgroup|apparmor|panic_on|panic=|hung_task|"
    r"(?:soft|hard)lockup.*=|lost synch|clocksource|hrtimer|perf: interrupt|device (?:descriptor|not accepting)|"
    r"Fallback|ignor",
    re.IGNORECASE,
)
# Words of a driver that starts.
_ANNOUNCEMENT = re.compile(
    r"\bload(?:ing|ed)\b|initiali[sz]|\bregistered\b|\benabled?\b|\bversion\b|\bdetected\b|\bsupport|\bbuild\b|copyright|"
    r"license|\bstarted\b|\bmounted\b|\bis disabled\b|link (?:is )?up|\bready\b|\bnot (?:found|present|available)\b",
    re.IGNORECASE,
)
# Drivers of what a training needs: GPUs, NICs, disks and file systems.
_GRAVE = re.compile(
    r"NVRM|\bnvidia|nvlink|nvswitch|amdgpu|\bmlx\d|\bib\d*_|infiniband|\bbnxt|\bice\b|\bi40e|\birdma|\befa\b|\bena\b|"
    r"\bhfi\d|\bqed|\bnvme|EXT4|XFS|btrfs|LustreError|LNet|\bnfs|ceph|gpfs|mmfs|beegfs|blk_|\bsd[a-z]\b|scsi|"
    r"mpt\ds|megaraid|\bmd\d|raid|NMI|\bBUG\b|watchdog|\bEDAC|\bmce\b|pcieport|\bPCIe"
)
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{4,}|\d+")


class OtherError(msgspec.Struct, frozen=True, kw_only=True):
    """Lines at error level that differ in numbers only."""

    text: str  # the last of them, without its time
    num_lines: int
    is_grave: bool  # of a driver that a training needs, or above error level


class OtherErrors:
    """The error lines so far, by their text without numbers."""

    def __init__(self) -> None:
        self._with_level: dict[str, OtherError] = {}
        self._by_words: dict[str, OtherError] = {}
        self._has_levels = False

    def read(self, line: str) -> None:
        """Read a line that does not belong to any known kind."""
        level = _level(line)
        text = _BEFORE.sub("", line, count=1).strip()
        has_words = _WORDS.search(text) is not None
        is_critical = level is not None and level <= _CRITICAL_LEVEL
        if level is None:
            is_error = has_words
            errors = self._by_words
        else:
            self._has_levels = True
            is_error = level <= _ERROR_LEVEL
            errors = self._with_level
        if not text or not is_error or (not is_critical and _is_harmless(text, has_words=has_words)):
            return
        is_grave = is_critical or (has_words and _GRAVE.search(text) is not None)
        shape = _NUMBERS.sub("#", text)
        num_before = errors[shape].num_lines if shape in errors else 0
        errors[shape] = OtherError(text=text, num_lines=num_before + 1, is_grave=is_grave)

    def in_order(self) -> tuple[OtherError, ...]:
        """Return the errors, the gravest first; lines are judged by words only if the log gives no levels."""
        errors = (self._with_level if self._has_levels else self._by_words).values()
        return tuple(sorted(errors, key=lambda error: not error.is_grave))


def _is_harmless(text: str, *, has_words: bool) -> bool:
    """Whether a healthy kernel writes such a line: some drivers announce themselves at error level."""
    is_announcement = not has_words and _ANNOUNCEMENT.search(text) is not None
    return is_announcement or _HARMLESS.search(text) is not None


def _level(line: str) -> int | None:
    """Return the level in the line's prefix; None if there is no level."""
    match = _LEVEL.match(line)
    if match is None:
        return None
    if match["name"]:
        return _LEVELS.get(match["name"], 7)
    return int(match["number"] or match["kmsg"]) & 7
