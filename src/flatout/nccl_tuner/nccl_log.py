"""Read NCCL's own log: the tuner that it asks, its channels, and the algorithm and protocol of each call.

In: the text of a file that `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING` wrote, of NCCL 2.24 to 2.32. Out:
`TunerLog`, and whether a table took effect: no other source says what NCCL really chose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from flatout.input_files import bounded_log
from flatout.records.collective_table import ALGORITHMS, PROTOCOLS, CollectiveTable

# AllReduce: 16384 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
_CALL = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)(?: channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\})?")
_TUNER = re.compile(r"Using (?:tuner plugin )?(\S+) \(v(\d+)\)", re.IGNORECASE)
_CHANNELS = re.compile(r"(\d+) coll channels")
_SET = re.compile(r"(NCCL_\w+) set by environment to (\S+)")
_OURS = re.compile(r"flatout tuner: (.*)")
_REFUSED = re.compile(r"flatout tuner: (.* is not used: .*)")
_NAMES = {name.replace("_", "").upper(): name for name in (*ALGORITHMS, *PROTOCOLS)}
_COLLECTIVES = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}


class LoggedCall(msgspec.Struct, frozen=True, kw_only=True):
    """What NCCL chose for one call. A name that Flatout does not know is kept as NCCL writes it."""

    collective: str
    num_bytes: int
    algorithm: str
    protocol: str
    num_channels: int | None  # None: not in the log


class TunerLog(msgspec.Struct, frozen=True, kw_only=True):
    tuner: str | None = None  # the name of the last tuner that was loaded
    tuner_version: int | None = None
    num_channels: int | None = None  # of the last communicator
    variables: dict[str, str] = {}  # as NCCL read them
    refused: tuple[str, ...] = ()  # what our plugin says of tables that it does not use
    calls: tuple[LoggedCall, ...] = ()


def parse_log(text: str) -> TunerLog:
    """Return what a log says. Lines of other kinds are skipped."""
    tuner, version, channels = None, None, None
    variables: dict[str, str] = {}
    refused: list[str] = []
    calls: list[LoggedCall] = []
    for line in bounded_log(text).splitlines():
        if call := _CALL.search(line):
            calls.append(_call(call))
        elif refusal := _REFUSED.search(line):
            refused.append(refusal[1])
        elif _OURS.search(line):
            continue
        elif loaded := _TUNER.search(line):
            if "net" not in line.lower().split("using")[0]:  # network plugins are reported by the same words
                tuner, version = loaded[1], int(loaded[2])
        elif counted := _CHANNELS.search(line):
            channels = int(counted[1])
        elif variable := _SET.search(line):
            variables[variable[1]] = variable[2].rstrip(".")
    return TunerLog(
        tuner=tuner,
        tuner_version=version,
        num_channels=channels,
        variables=variables,
        refused=tuple(refused),
        calls=tuple(calls),
    )


def table_problems(log: TunerLog, table: CollectiveTable, num_ranks: int, num_nodes: int) -> list[str]:
    """Say where the log shows that a table did not take effect, one line each; empty if it did everywhere.

    Calls that no row applies to are not judged.
    """
    if log.refused:
        return list(log.refused)
    if log.tuner is None:
        return ["NCCL's log names no tuner plugin"]
    if log.tuner != "flatout":
        return [f"NCCL asked the tuner {log.tuner} instead of Flatout's"]
    problems = []
    for call in log.calls:
        row = table.row_for(call.collective, call.num_bytes, num_ranks, num_nodes)
        if row is None:
            continue
        wanted = (row.algorithm or call.algorithm, row.protocol or call.protocol)
        if wanted != (call.algorithm, call.protocol):
            problems.append(
                f"{call.collective} of {call.num_bytes} bytes used {call.algorithm} and {call.protocol}, not"
                f" {wanted[0]} and {wanted[1]}"
            )
        if row.max_channels is not None and call.num_channels is not None and call.num_channels > row.max_channels:
            problems.append(
                f"{call.collective} of {call.num_bytes} bytes used {call.num_channels} channels, more than"
                f" {row.max_channels}"
            )
    return list(dict.fromkeys(problems))


def setting_problems(log: TunerLog, wanted: dict[str, str]) -> list[str]:
    """Say which variables NCCL's log does not show as they were set."""
    return [
        f"NCCL read {name} as {log.variables.get(name, 'unset')}, not {value}"
        for name, value in wanted.items()
        if name.startswith("NCCL_") and log.variables.get(name) != value
    ]


def options_problems(log: TunerLog, min_ctas: int, max_ctas: int) -> list[str]:
    """Say whether a communicator has a number of channels that its options do not allow."""
    if log.num_channels is None:
        return ["NCCL's log names no number of channels"]
    if min_ctas <= log.num_channels <= max_ctas:
        return []
    return [f"the communicator has {log.num_channels} channels, not {min_ctas} to {max_ctas}"]


def algorithms_by_size(calls: Sequence[LoggedCall]) -> dict[str, dict[int, str]]:
    """Return the choice for each size of a collective, in words; the last call of a size counts."""
    choices: dict[str, dict[int, str]] = {}
    for call in calls:
        choices.setdefault(call.collective, {})[call.num_bytes] = f"{call.algorithm}, {call.protocol}"
    return choices


def _call(match: re.Match[str]) -> LoggedCall:
    name, num_bytes, algorithm, protocol, low, high = match.groups()
    return LoggedCall(
        collective=_COLLECTIVES.get(name, name),
        num_bytes=int(num_bytes),
        algorithm=_NAMES.get(algorithm.replace("_", "").upper(), algorithm),
        protocol=_NAMES.get(protocol.upper(), protocol),
        num_channels=int(high) - int(low) + 1 if low is not None else None,
    )
