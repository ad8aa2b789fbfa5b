"""Parse the values in Slurm's tables: times, durations, trackable resources (TRES), states and exit codes.

Each function takes the text of a field and returns its value; None if Slurm states that there is none. A one-line
ValueError states the expected format; the table reader adds the position.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

NONE_WORDS = frozenset({"", "unknown", "none", "n/a", "(null)", "invalid"})

_DURATION = re.compile(
    r"(?:(?P<days>\d{1,9})-)?(?:(?P<a>\d{1,9}):)?(?P<b>\d{1,9}):(?P<c>\d{1,9})(?P<fraction>\.\d{1,20})?"
)
_EPOCH = datetime(1970, 1, 1)
_OFFSET = re.compile(r"[+-][0-9]{2}:?[0-9]{2}$")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:?[0-9]{2})?")
_MIG = re.compile(r"(?:.*[_-])?(?P<slices>[1-7])g[._](?P<memory>\d+)gb.*")
_SLICES_OF_A_GPU = 7

# man squeue, "JOB STATE CODES": the states of jobs, and the flags that are shown in place of a state.
_ABBREVIATED = {
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CD": "COMPLETED",
    "CF": "CONFIGURING",
    "CG": "COMPLETING",
    "DL": "DEADLINE",
    "F": "FAILED",
    "LF": "LAUNCH_FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PD": "PENDING",
    "PO": "POWER_UP_NODE",
    "PR": "PREEMPTED",
    "R": "RUNNING",
    "RD": "RESV_DEL_HOLD",
    "RF": "REQUEUE_FED",
    "RH": "REQUEUE_HOLD",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "S": "SUSPENDED",
    "SE": "SPECIAL_EXIT",
    "SI": "SIGNALING",
    "SO": "STAGE_OUT",
    "ST": "STOPPED",
    "TO": "TIMEOUT",
}
_STATES = {*_ABBREVIATED.values(), "RECONFIG_FAIL", "UPDATE_DB", "EXPEDITING"}


_GPUS = re.compile(r"[0-9]{1,9}")
_SHOWN = 60  # characters of a wrong value
_LAST_TIME_S = 253_402_300_799  # the end of the year 9999, after which Python has no dates


def time_s(text: str) -> float | None:
    """Parse `2023-01-15T03:01:10`, with or without an offset from UTC, or seconds since 1970.

    Without an offset, as Slurm prints times by default, it is by the clock of the cluster.
    """
    if text.casefold() in NONE_WORDS:
        return None
    try:
        if text.isascii() and text.isdigit():
            if float(text) > _LAST_TIME_S:
                raise ValueError
            return float(text)
        if _TIME.fullmatch(text) is None:  # fromisoformat also accepts other formats
            raise ValueError
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"a time must look like 2026-01-31T12:00:00, but is `{text}`") from None
    return (found - (_EPOCH if found.tzinfo is None else _EPOCH.replace(tzinfo=UTC))).total_seconds()


def has_time_zone(text: str) -> bool:
    """Whether a valid time says how far it is from UTC."""
    return text.isdigit() or ("T" in text and (text.endswith("Z") or _OFFSET.search(text) is not None))


def duration_s(text: str) -> float | None:
    """Parse `D-HH:MM:SS`, `HH:MM:SS` or `MM:SS`, with or without a fraction."""
    if text.casefold() in NONE_WORDS:
        return None
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"a duration must look like 1-02:03:04, but is `{text}`")
    if found["days"] is not None and found["a"] is None:  # `1-02:03` is hours and minutes
        hours, minutes, seconds = int(found["b"]), int(found["c"]), 0
    else:
        hours, minutes, seconds = int(found["a"] or 0), int(found["b"]), int(found["c"])
    whole = ((int(found["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    return whole + float(found["fraction"] or 0)


def limit_s(text: str) -> float | None:
    """Parse a time limit; None if there is none."""
    if text.casefold() in {"unlimited", "partition_limit", *NONE_WORDS}:
        return None
    return duration_s(text)


def gpus_of_tres(text: str) -> tuple[float, dict[str, float]]:
    """Parse `billing=8,gres/gpu=8,gres/gpu:h100=8` into the number of GPUs, in total and by type; 0 if there are none.

    If Slurm tracks both, the count without a type includes the typed ones. A MIG slice counts by its sevenths.
    """
    untyped: float | None = None
    types: dict[str, float] = {}
    for part in text.split(",") if text.casefold() not in NONE_WORDS else ():
        name, equals, count = part.partition("=")
        if not name.startswith("gres/gpu") or (len(name) > 8 and name[8] != ":"):  # gres/gpumem, gres/gpuutil
            continue
        if not equals or not _GPUS.fullmatch(count):
            raise ValueError(f"a number of GPUs must look like gres/gpu=8, but is `{part[:_SHOWN]}`")
        if len(name) > 9:
            types[name[9:]] = types.get(name[9:], 0.0) + int(count) * _share(name[9:])
        else:
            untyped = float(count)
    typed = sum(types.values())
    if untyped is None:
        return typed, types
    slices = any(_share(kind) != 1 for kind in types)
    return (typed if slices else max(untyped, typed)), types


def gpus_of_gres(text: str, num_nodes: int) -> tuple[float, dict[str, float]]:
    """Parse `gpu:h100:8(S:0-1)`, the GPUs of each node, as squeue and Slurm before 20.11 print it."""
    types: dict[str, float] = {}
    number = 0.0
    for part in re.sub(r"\([^)]*\)", "", text).split(",") if text.casefold() not in NONE_WORDS else ():
        words = re.split("[:=]", part.removeprefix("gres/").removeprefix("gres:"))
        if words[0] != "gpu":
            continue
        kind, count = (words[1], words[2]) if len(words) == 3 else ("", words[1] if len(words) == 2 else "1")
        if len(words) == 2 and not count.isdigit():
            kind, count = count, "1"
        if not _GPUS.fullmatch(count):
            raise ValueError(f"a number of GPUs per node must look like gpu:8, but is `{part[:_SHOWN]}`")
        found = int(count) * _share(kind) * num_nodes
        number += found
        if kind:
            types[kind] = types.get(kind, 0.0) + found
    return number, types


def state_of(text: str) -> str:
    """Parse a state: `CANCELLED by 1000` and `CANCELLED+` (truncated to the column) are CANCELLED, `R` is RUNNING."""
    word = text.split()[0].removesuffix("+") if text.split() else ""
    state = _ABBREVIATED.get(word, word)
    if state not in _STATES:
        raise ValueError(f"a state must be one of Slurm's, e.g. COMPLETED, but is `{text}`")
    return state


def exit_code_of(text: str) -> tuple[int | None, int | None]:
    """Parse `1:9` into exit code and signal."""
    if text.casefold() in NONE_WORDS:
        return None, None
    found = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text)
    if found is None:
        raise ValueError(f"an exit code must look like 0:0, but is `{text}`")
    return int(found[1]), int(found[2])


def _share(kind: str) -> float:
    found = _MIG.fullmatch(kind.casefold())
    return 1.0 if found is None else int(found["slices"]) / _SLICES_OF_A_GPU
