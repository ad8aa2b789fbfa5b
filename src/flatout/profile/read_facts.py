"""Read `JobFacts`, the facts about a job that the catalogue of changes needs, from a recording's folder.

In: `facts-rank<R>.json` of each rank, which `inside/` wrote, the steps, the hosts' samples and the command. Out: the
facts of the job. A fact that is unknown, or on which ranks disagree, is None. The transport and the sizes of
collectives come from the trace and the machine, and are None here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from flatout.errors import InputError
from flatout.input_files import decode_json, read_bytes
from flatout.inside.protocol import File
from flatout.profile.read_recording import read_recording
from flatout.records.change import JobFacts
from flatout.records.recording import HostUse, Recording

# Programs that start ranks, with their names in the catalogue.
_LAUNCHERS = {"torchrun": "torchrun", "srun": "srun", "accelerate": "accelerate", "deepspeed": "deepspeed"}
_LAUNCHERS |= {"mpirun": "mpirun", "mpiexec": "mpirun"}
_MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun"}
_MODULES |= {"accelerate.commands.launch": "accelerate"}

MOST_BUSY = 1.1  # of the cores allowed: more are not all the job's to use


def read_facts(path: Path, recording: Recording | None = None) -> JobFacts:
    """Read the facts of the job recorded at `path`; `recording` is the result of `read_recording` for it.

    Raise InputError if `path` is not a recording. Without the ranks' facts (`--light`), only facts from the steps, the
    samples and the command are known.
    """
    recording = recording or read_recording(path)
    contents = [content for file in sorted(path.glob(File.FACTS.glob)) if (content := _content(file)) is not None]
    agreed = _agreed([_table(content, "facts") for content in contents])
    ranks = recording.ranks
    num_ranks_on = Counter(rank.hostname for rank in ranks)
    busy = [host.cores_busy_by_others for host in recording.hosts if host.cores_busy_by_others is not None]
    facts = {
        "num_ranks": max((rank.world_size for rank in ranks), default=None),
        "num_hosts": len(num_ranks_on) or None,
        "ranks_per_host": max(num_ranks_on.values(), default=None),
        "launcher": _launcher_of(recording),
        "cores_allowed": min((host.cores_allowed for host in recording.hosts), default=None),
        "cores_busy_by_others": max(busy, default=None),
        "cores_busy_by_job": max(filter(None, map(_busy_by_job, recording.hosts)), default=None),
        "passes_per_step": _passes(recording),
        "only_infers": all(rank.only_infers for rank in ranks) if ranks else None,
        "loader_length_spread": _length_spread(recording),
        "loader_batch_tokens": _batch_tokens(recording),
        "environment": _agreed_environment(contents),
        **{name: value for name, value in agreed.items() if name in JobFacts.__struct_fields__},
    }
    try:
        return msgspec.convert(facts, JobFacts)
    except msgspec.ValidationError as error:
        raise InputError(
            f"the facts in {path} cannot be read: {error}", hint="record the job again with this version"
        ) from error


def _busy_by_job(host: HostUse) -> float | None:
    """Return the cores that the job's processes keep busy; None if it is unknown.

    Where a quota allows only some of the machine's cores, the busy ones may be those of other containers.
    """
    if host.cores_busy is None or host.cores_busy_by_others is None or host.cores_busy > MOST_BUSY * host.cores_allowed:
        return None
    return max(host.cores_busy - host.cores_busy_by_others, 0.0)


def _launcher_of(recording: Recording) -> str | None:
    launchers = (launcher(run.command) for run in recording.runs)
    return next((name for name in launchers if name is not None), None)


def launcher(command: Iterable[str]) -> str | None:
    """Return the program that starts the ranks: the first known launcher before the script, else `python` or None."""
    words = list(command)
    is_python = False
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name = word.rpartition("/")[2]
        if name in _LAUNCHERS:
            return _LAUNCHERS[name]
        if word == "-m" and following in _MODULES:
            return _MODULES[following]
        if name.endswith(".py"):
            break
        is_python |= name.startswith("python")
    return "python" if is_python else None


def _content(file: Path) -> dict[str, Any] | None:
    try:
        content = decode_json(read_bytes(file))
    except (OSError, msgspec.DecodeError):
        return None
    return content if isinstance(content, dict) else None


def _table(content: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a table of a rank's facts; an empty one if the file is damaged there."""
    table = content.get(name)
    return table if isinstance(table, dict) else {}


def _largest(values: list[Any]) -> Any:
    """Return the largest number; if a value is damaged and not a number, that one, which the facts' type refuses."""
    for value in values:
        if not isinstance(value, int | float):
            return value
    return max(values)


# Facts of each rank's own loader, and how to combine them. The rank that computes most needs the most cores.
_COMBINED: dict[str, Callable[[list[Any]], Any]] = {
    "loader_cpu_share": _largest,
    "loader_draws": any,
    "loader_keeps_state": any,
    "loader_watch_s": _largest,
    "loader_pickled_bytes": _largest,
    "loader_pickled_s": _largest,
    "loader_sampler_s": _largest,
}


def _agreed(facts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts on which all ranks that know them agree, and combined values of those that differ by rank."""
    agreed: dict[str, Any] = {}
    for name in {name for of_rank in facts for name in of_rank}:
        values = [of_rank[name] for of_rank in facts if of_rank.get(name) is not None]
        if not values:
            continue
        if name in _COMBINED:
            agreed[name] = _COMBINED[name](values)
        elif all(value == values[0] for value in values):
            agreed[name] = values[0]
    return agreed


def _agreed_environment(contents: list[dict[str, Any]]) -> dict[str, str]:
    environments = [_table(content, "environment") for content in contents]
    if not environments:
        return {}
    first = environments[0]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in environments)}


def _passes(recording: Recording) -> int | None:
    """Return the number of backward passes per ordinary step; None unless at least 80 % of the steps agree."""
    counts: Counter[float] = Counter()
    for rank in recording.ranks:
        counts.update(rank.steps.num_backward[rank.steps.is_ordinary].tolist())
    if not counts:
        return None
    most_common, number = counts.most_common(1)[0]
    is_usual = number >= np.ceil(0.8 * counts.total())
    return int(most_common) if is_usual and most_common > 0 else None


_MIN_STEPS = 8  # with tokens: fewer do not show how much lengths differ


def _length_spread(recording: Recording) -> float | None:
    """Return by how much the padded length of the batches varies, on the rank where it varies most; None: unknown."""
    spreads = []
    for rank in recording.ranks:
        steps = rank.steps
        is_counted = steps.is_ordinary & (steps.num_tokens > 0) & (steps.num_samples > 0)
        lengths = steps.num_tokens[is_counted] / steps.num_samples[is_counted]
        if len(lengths) >= _MIN_STEPS:
            spreads.append(float(lengths.std() / lengths.mean()))
    return max(spreads, default=None)


def _batch_tokens(recording: Recording) -> int | None:
    """Return the tokens of a batch, padding included, on average; None if they were not counted."""
    num_passes = _passes(recording) or 1
    tokens = [rank.steps.num_tokens[rank.steps.is_ordinary & (rank.steps.num_tokens > 0)] for rank in recording.ranks]
    counted = np.concatenate(tokens) if tokens else np.empty(0)
    return round(float(counted.mean()) / num_passes) if len(counted) else None
