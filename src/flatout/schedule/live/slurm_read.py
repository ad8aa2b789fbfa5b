"""Read output of `squeue --json`, `sinfo --json` and `sacct -P` as `JobView`s, `NodeView`s and node failures.

It reads the JSON of Slurm 22.05 (v0.0.38), and of later versions as documented, in which a number is an object
with `set`, `infinite` and `number`, and a state is a list. Other output raises a one-line InputError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from flatout.errors import InputError
from flatout.schedule.live.hostlist import expanded
from flatout.schedule.live.view import JobState, JobView, NodeFailure, NodeView

_T = TypeVar("_T")
_REQUESTED = re.compile(r"gres[:/]gpu(:[A-Za-z][\w.-]*)?(?:[:=](\d+))?(?=,|$)")  # type, number
_HELD = re.compile(r"gpu(?::[A-Za-z][\w.-]*)?:(\d+)(?:\(IDX:([^)]*)\))?")
_CHECKPOINT = re.compile(r"(?:^|[\s,;])checkpoint=(\S+)")
_STATES: Mapping[str, JobState] = {
    "PENDING": "pending",
    "CONFIGURING": "running",
    "RUNNING": "running",
    "SUSPENDED": "suspended",
    "STOPPED": "suspended",
    "SIGNALING": "running",
    "STAGE_OUT": "completing",
    "COMPLETING": "completing",
    "REQUEUED": "pending",
    "REQUEUE_HOLD": "pending",
    "REQUEUE_FED": "pending",
    "SPECIAL_EXIT": "pending",
    "RESV_DEL_HOLD": "pending",
    "RESIZING": "running",
}
_NO_NUMBERS = {4294967294, 4294967295}  # NO_VAL and INFINITE
_WAITS_FOR = ("Dependency", "DependencyNeverSatisfied", "BeginTime", "JobArrayTaskLimit")
# A node that is powered down to save energy will be powered up for a job.
_UNUSABLE = {
    "DOWN",
    "DRAIN",
    "DRAINED",
    "DRAINING",
    "FAIL",
    "FAILING",
    "ERROR",
    "UNKNOWN",
    "FUTURE",
    "MAINTENANCE",
    "MAINT",
    "NOT_RESPONDING",
    "POWERING_DOWN",
    "REBOOT_ISSUED",
    "REBOOT_REQUESTED",
    "INVALID_REG",
    "INVALID",
}
_DOWN = {"DOWN", "FAIL", "FAILING", "ERROR"}
_DRAINED = {"DRAIN", "DRAINED", "DRAINING"}


def read_jobs(text: bytes) -> tuple[JobView, ...]:
    """Read `squeue --json`, each job once. Files named as `checkpoint=PATH` in comments are examined."""
    jobs = [_guarded("squeue --json", _job, entry) for entry in _entries(text, "squeue --json", "jobs")]
    return tuple({job.id: job for job in jobs}.values())


def read_nodes(text: bytes) -> tuple[NodeView, ...]:
    """Read `sinfo --json` or, for later Slurm versions, `scontrol show nodes --json`."""
    return tuple(_guarded("sinfo --json", _node, entry) for entry in _entries(text, "sinfo --json", "nodes"))


def has_nodes(text: bytes) -> bool:
    """Whether `sinfo --json` lists single nodes; later versions list groups of nodes."""
    return "nodes" in _document(text, "sinfo --json")


def read_failures(text: bytes) -> list[NodeFailure]:
    """Read jobs that ended as NODE_FAIL from `sacct -X -D -n -P -o State,End,NodeList`, with times in Unix seconds.

    A job of N nodes counts 1/N on each, because the accounting does not say which of them failed.
    """
    failures: list[NodeFailure] = []
    for line in text.decode("utf-8", "replace").splitlines():
        fields = line.split("|")
        if len(fields) != 3:
            raise InputError(f"sacct -P must print three fields per line, but printed {line[:80]!r}")
        if fields[0].split(" ")[0] == "NODE_FAIL" and fields[1].isdecimal():
            nodes = _guarded("sacct", expanded, fields[2])
            failures.extend(NodeFailure(node=node, unix_s=float(fields[1]), weight=1 / len(nodes)) for node in nodes)
    return failures


def _document(text: bytes, command: str) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(text.decode("utf-8", "replace"))
    except msgspec.DecodeError as error:
        raise InputError(f"{command} did not print valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{command} must print an object, but printed {type(document).__name__}")
    return document


def _entries(text: bytes, command: str, name: str) -> list[dict[str, Any]]:
    document = _document(text, command)
    entries = document.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        errors = document.get("errors")
        said = f": {str(errors)[:120]}" if errors else ""
        raise InputError(f"{command} must print a list of objects `{name}`, but printed none{said}")
    return entries


def _guarded(command: str, read: Callable[[Any], _T], entry: Any) -> _T:
    try:
        return read(entry)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        kind = f"no {error}" if isinstance(error, KeyError) else str(error)
        what = entry.get("job_id", entry.get("name", "?")) if isinstance(entry, dict) else entry
        raise InputError(f"{command}: the entry {str(what)[:80]!r} cannot be read: {kind[:120]}") from None


def _job(entry: Mapping[str, Any]) -> JobView:
    state = _state(entry["job_state"])
    is_pending = state == "pending"
    comment = _text(entry.get("comment"))
    reason = _text(entry.get("state_reason"))
    priority = _whole(entry.get("priority"))
    limit_min = _number(entry.get("time_limit"))
    has_dependency = bool(_text(entry.get("dependency"))) or reason in _WAITS_FOR
    nodes = () if is_pending else expanded(_text(entry.get("nodes")))
    num_nodes = _whole(entry.get("node_count")) or 1
    gpus = _job_gpus(entry, nodes, num_nodes)
    return JobView(
        id=_job_id(entry),
        state=state,
        user=_text(entry.get("user_name")),
        partition=_text(entry.get("partition")),
        submit_unix_s=float(_time(entry.get("submit_time")) or 0.0),
        name=_text(entry.get("name")),
        account=_text(entry.get("account")),
        qos=_text(entry.get("qos")),
        comment=comment,
        reason=reason,
        priority=priority,
        nice=_whole(entry.get("nice")) or 0,
        num_nodes=num_nodes,
        num_gpus=gpus.num_gpus,
        gpus_per_node=_gpus(_text(entry.get("tres_per_node"))) or None,
        cpus=_whole(entry.get("cpus")),
        eligible_unix_s=_time(entry.get("eligible_time")),
        start_unix_s=None if is_pending else _time(entry.get("start_time")),
        time_limit_s=limit_min * 60.0 if limit_min else None,
        restarts=_whole(entry.get("restart_cnt")) or 0,
        may_requeue=bool(entry.get("requeue")) and bool(entry.get("batch_flag")),
        is_held=is_pending and (priority == 0 or bool(entry.get("hold"))),
        is_dependent=is_pending and has_dependency,
        reservation=_text(entry.get("resv_name")),
        is_composite=bool(_number(entry.get("het_job_id"))),
        required_features=_text(entry.get("features")),
        required_nodes=expanded(_text(entry.get("required_nodes"))),
        excluded_nodes=expanded(_text(entry.get("excluded_nodes"))),
        gpus_by_node=gpus.by_node,
        gpu_indices=gpus.indices,
        cpus_by_node=_held_cpus(entry, nodes),
        last_checkpoint_unix_s=_last_checkpoint(comment) if state == "running" else None,
    )


class _JobGpus(NamedTuple):
    """The GPUs of one job: those that it has, or for a waiting job those that it asks for."""

    num_gpus: int
    by_node: dict[str, int]
    indices: dict[str, tuple[int, ...]]


def _job_gpus(entry: Mapping[str, Any], nodes: Sequence[str], num_nodes: int) -> _JobGpus:
    by_node, indices = _held_gpus(nodes, entry.get("gres_detail") or ())
    num_gpus = sum(by_node.values()) or _requested_gpus(entry, num_nodes)
    if num_gpus and not by_node:  # GPUs by node are unknown: assume equally many on each
        by_node = {node: num_gpus // len(nodes) for node in nodes}
    return _JobGpus(num_gpus, by_node, indices)


def _state(value: object) -> JobState:
    states = _words(value)
    return "completing" if "COMPLETING" in states else _STATES.get(states[0], "ended")


def _job_id(entry: Mapping[str, Any]) -> str:
    """Return the id for `scontrol`. An array's number alone means all its tasks, so a task's id has both numbers."""
    array, task = _number(entry.get("array_job_id")), _number(entry.get("array_task_id"))
    if array and not _text(entry.get("array_task_string")) and task is not None:
        return f"{int(array)}_{int(task)}"
    return str(int(entry["job_id"]))


def _held_gpus(nodes: Sequence[str], details: Sequence[str]) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    held: dict[str, int] = {}
    indices: dict[str, tuple[int, ...]] = {}
    for node, detail in zip(nodes, details, strict=False):
        by_type = _HELD.findall(detail)
        if not by_type:
            continue
        held[node] = sum(int(number) for number, _ in by_type)
        ranges = [text for _, text in by_type]
        if all(text and text != "N/A" for text in ranges):
            indices[node] = tuple(int(index) for text in ranges for index in expanded(f"[{text}]"))
    return held, indices


def _requested_gpus(entry: Mapping[str, Any], num_nodes: int) -> int:
    if per_node := _gpus(_text(entry.get("tres_per_node"))):
        return per_node * num_nodes
    if per_job := _gpus(_text(entry.get("tres_per_job"))):
        return per_job
    if per_task := _gpus(_text(entry.get("tres_per_task"))):
        return per_task * int(_number(entry.get("tasks")) or 1)
    return _gpus(_text(entry.get("tres_req_str")))


def _gpus(text: str) -> int:
    # A request for a GPU type can be listed both with and without the type: `gres/gpu=8,gres/gpu:h100=8`.
    requests = [(kind, int(number or 1)) for kind, number in _REQUESTED.findall(text)]
    typed = sum(number for kind, number in requests if kind)
    untyped = sum(number for kind, number in requests if not kind)
    return max(typed, untyped) if "=" in text else typed + untyped


def _held_cpus(entry: Mapping[str, Any], nodes: Sequence[str]) -> dict[str, int]:
    if not nodes:
        return {}
    resources = entry.get("job_resources")
    allocated = resources.get("allocated_nodes") if isinstance(resources, dict) else None
    if not isinstance(allocated, list):
        return {}
    held: dict[str, int] = {}
    for node in allocated:
        name, sockets = node.get("nodename"), node.get("sockets")
        if isinstance(name, str) and isinstance(sockets, dict):
            held[name] = sum(len(socket.get("cores", ())) for socket in sockets.values())
    return held if len(held) == len(nodes) else {}


def _last_checkpoint(comment: str) -> float | None:
    """Return the time of the newest file at `checkpoint=PATH` from a job's comment; None if there is no such file."""
    named = _CHECKPOINT.search(comment)
    if named is None:
        return None
    path = Path(named[1])
    try:
        if path.is_dir():
            return max((each.stat().st_mtime for each in path.iterdir()), default=None)
        return path.stat().st_mtime
    except OSError:
        return None


def _node(entry: Mapping[str, Any]) -> NodeView:
    states = {word.rstrip("*~#!%$@^-") for word in (*_words(entry["state"]), *_words(entry.get("state_flags") or ()))}
    return NodeView(
        name=entry["name"],
        num_gpus=sum(int(number) for number, _ in _HELD.findall(_text(entry.get("gres")))),
        num_cpus=_whole(entry.get("cpus")),
        partitions=tuple(entry.get("partitions") or ()),
        features=tuple(_listed(entry.get("active_features") or entry.get("features"))),
        is_usable=not states & _UNUSABLE,
        is_down=bool(states & _DOWN),
        is_drained=bool(states & _DRAINED),
        is_reserved="RESERVED" in states,
        reason=_text(entry.get("reason")),
    )


def _words(value: object) -> list[str]:
    """Return the words of a state, which is a string or a list; `MIXED+DRAIN` has two words."""
    if isinstance(value, str):
        return value.upper().split("+")
    if isinstance(value, list | tuple):
        return [word for text in value if isinstance(text, str) for word in text.upper().split("+")]
    return []


def _listed(value: object) -> list[str]:
    if isinstance(value, str):
        return [each for each in value.split(",") if each]
    return [str(each) for each in value] if isinstance(value, list) else []


def _text(value: object) -> str:
    """Return the text; "" for each way in which Slurm writes an empty text: "", null, `(null)` and `N/A`."""
    if isinstance(value, list):
        return ",".join(str(each) for each in value)
    text = value if isinstance(value, str) else ""
    return "" if text in ("(null)", "N/A", "None") else text


def _number(value: object) -> float | None:
    """Return a number; None if it is not set or infinite."""
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if value in _NO_NUMBERS else value


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _time(value: object) -> float | None:
    """Return a Unix time in seconds; None if it is not set, which Slurm also writes as 0."""
    return _number(value) or None
