"""A recording's folder -> `JobFacts`, what the catalogue of changes asks about a job.

In: `facts-rank<R>.json` of each rank, which `inside/` wrote, the steps, the hosts' samples and the command. Out: the
facts of the job; what ranks disagree about, and what nobody knows, is None. Transport and the sizes of collectives come
from the trace and the machine, and are left None here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from flatout.errors import InputError
from flatout.inside.protocol import File
from flatout.profile.read_recording import read_recording
from flatout.records.change import JobFacts
from flatout.records.recording import Recording

# Words of a command that start ranks, and what the catalogue calls them.
_LAUNCHERS = {"torchrun": "torchrun", "srun": "srun", "accelerate": "accelerate", "deepspeed": "deepspeed"}
_LAUNCHERS |= {"mpirun": "mpirun", "mpiexec": "mpirun"}
_MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun"}
_MODULES |= {"accelerate.commands.launch": "accelerate"}


def read_facts(path: Path, recording: Recording | None = None) -> JobFacts:
    """The facts of the job recorded at `path`; `recording` is what `read_recording` read there.

    Raises InputError where `path` is no recording. A recording without facts (`--light`) gives what its steps tell.
    """
    recording = recording or read_recording(path)
    files = [file for file in sorted(path.glob(File.FACTS.glob)) if (file.stat().st_size > 0)]
    contents = [content for file in files if (content := _content(file)) is not None]
    inside = _agreed([content.get("facts", {}) for content in contents])
    ranks = recording.ranks
    per_host = Counter(rank.hostname for rank in ranks)
    allowed = [host.cores_allowed for host in recording.hosts]
    known = {
        "num_ranks": max((rank.world_size for rank in ranks), default=None),
        "num_hosts": len(per_host) or None,
        "ranks_per_host": max(per_host.values(), default=None),
        "launcher": _first(launcher(run.command) for run in recording.runs),
        "cores_allowed": min(allowed, default=None),
        "passes_per_step": _passes(recording),
        "environment": _agreed_environment(contents),
        **{name: value for name, value in inside.items() if name in JobFacts.__struct_fields__},
    }
    try:
        return msgspec.convert(known, JobFacts)
    except msgspec.ValidationError as error:
        raise InputError(
            f"the facts in {path} cannot be read: {error}", hint="record the job again with this version"
        ) from error


def launcher(command: Iterable[str]) -> str | None:
    """What starts the ranks: the first word that is known, before the script; `python` where there is only that."""
    words = list(command)
    is_python = False
    for place, word in enumerate(words):
        name = word.rpartition("/")[2]
        if name in _LAUNCHERS:
            return _LAUNCHERS[name]
        if word == "-m" and place + 1 < len(words) and words[place + 1] in _MODULES:
            return _MODULES[words[place + 1]]
        if name.endswith(".py"):
            break
        is_python |= name.startswith("python")
    return "python" if is_python else None


def _content(file: Path) -> dict[str, Any] | None:
    try:
        content = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return content if isinstance(content, dict) else None


def _agreed(facts: list[dict[str, Any]]) -> dict[str, Any]:
    """What all ranks say that know it."""
    found: dict[str, Any] = {}
    for name in {name for one in facts for name in one}:
        values = [one[name] for one in facts if one.get(name) is not None]
        if values and all(value == values[0] for value in values):
            found[name] = values[0]
    return found


def _agreed_environment(contents: list[dict[str, Any]]) -> dict[str, str]:
    environments = [content.get("environment", {}) for content in contents]
    if not environments:
        return {}
    first = environments[0]
    return {name: value for name, value in first.items() if all(one.get(name) == value for one in environments)}


def _passes(recording: Recording) -> int | None:
    """Backward passes of an ordinary step; None where steps differ more than at the end of an epoch."""
    counts = [count for rank in recording.ranks for count in rank.steps.num_backward[rank.steps.is_ordinary].tolist()]
    if not counts:
        return None
    most_common, number = Counter(counts).most_common(1)[0]
    return int(most_common) if most_common > 0 and number >= np.ceil(0.8 * len(counts)) else None


def _first(values: Iterable[str | None]) -> str | None:
    return next((value for value in values if value is not None), None)
