"""Measure NCCL within a tuning of a job: its own groups and sizes, once, where its communication is exposed.

In: the profile of the job. Out: the facts of the job with the variables that apply what was measured, from which the
change `nccl-measured` is made; the job's step then decides, as for any other change. What was measured is kept in the
folder of the tuning, so that a tuning that is resumed does not measure again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from flatout.change.candidates import share_in_trial
from flatout.diagnosis_pipeline import Diagnosed
from flatout.errors import FlatoutError
from flatout.input_files import decode_json, read_bytes
from flatout.nccl_tuner.command import RESULT_FILE, read_fabric
from flatout.nccl_tuner.tuning import TuningRequest, tune_nccl
from flatout.nccl_tuner.work import work_of
from flatout.probe.nvml import Gpus
from flatout.records.change import JobFacts
from flatout.records.nccl_tuning import NcclTuning
from flatout.report.files import write_new

FOLDER = "nccl"  # in the folder of a tuning
FAMILIES = ("nccl", "nccl_measured")  # of the changes that `flatout tune nccl` tries
FINDINGS = ("exposed-communication", "exposed-all-gather", "redundant-gradient-sync")
MIN_EXPOSED_SHARE = 0.05  # of the step; below it, the measurement takes longer than it can save
# A share of the time that is left for trials. In 240 s on two GPUs over TCP, the measurement took 125 s, and left five.
MAX_SHARE_OF_BUDGET = 0.1

_READ_BY_COMMUNICATION = ("NCCL_", "FI_", "UCX_", "CUDA_", "LD_LIBRARY_PATH")

Say = Callable[[str], None]


class NcclRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How a tuning measures NCCL."""

    is_only: bool = False  # try only changes of NCCL, and measure in any case
    time_s: float = 120.0
    transport: str | None = None  # None: as the facts of the job say
    fabric: str | None = None  # file of a simulated fabric, in place of NCCL
    uses_plugin: bool = True


def nccl_words(request: NcclRequest) -> tuple[str, ...]:
    """Return the options of `flatout tune nccl` that make this request."""
    words = ["--time", f"{request.time_s:.0f}s"]
    for name, value in (("--transport", request.transport), ("--fabric", request.fabric)):
        if value is not None:
            words += [name, value]
    if not request.uses_plugin:
        words.append("--no-plugin")
    return tuple(words)


def with_measured_collectives(
    facts: JobFacts, done: Diagnosed, folder: Path, request: NcclRequest, say: Say, *, left_s: float
) -> tuple[JobFacts, str | None]:
    """Return the facts with the measured settings, and a note if there is something to report.

    Nothing is measured if the job's communication is hardly exposed, its transport is unknown, its ranks are on several
    hosts, or the measurement takes too much of the `left_s` seconds of the budget; only the last three are reported.
    """
    tuning = kept_measurement(folder / FOLDER / RESULT_FILE)
    note = None
    if tuning is None:
        reason = _why_not(facts, done, request)
        if reason is None and not request.is_only and request.time_s > MAX_SHARE_OF_BUDGET * left_s:
            reason = (
                f"NCCL is not measured for the job's messages: that takes {request.time_s:.0f} s, and {left_s:.0f} s of"
                " the budget are left; its usual settings are tried instead"
            )
        if reason is not None:
            return facts, reason or None
        try:
            tuning = _measure(facts, done, folder, request, say)
        except FlatoutError as error:
            return facts, f"NCCL could not be measured: {error}"
        note = _note(tuning)
    return msgspec.structs.replace(facts, measured_collectives=tuning.environment), note


def _why_not(facts: JobFacts, done: Diagnosed, request: NcclRequest) -> str | None:
    """Say why nothing is measured, "" if it is nothing to report; None if NCCL is to be measured."""
    exposed = sum(
        share_in_trial(done.diagnosis, finding) for finding in done.diagnosis.findings if finding.name in FINDINGS
    )
    if not request.is_only and (exposed < MIN_EXPOSED_SHARE or facts.backend != "nccl" or facts.transport is None):
        return ""
    if request.fabric is not None:
        return None
    if facts.backend != "nccl":
        return "NCCL is not measured, because the job's collectives do not use it"
    if facts.num_hosts != 1:
        return (
            "NCCL is not measured for ranks on several hosts: run flatout tune nccl by the job's own launcher, and give"
            " the job its variables"
        )
    if request.transport is None and facts.transport is None:
        return "NCCL is not measured, because the transport of its ranks is unknown: pass --transport"
    num_gpus = len(Gpus().facts())
    if num_gpus < max(2, facts.num_ranks or 2):
        missing = f"NCCL is not measured, because this machine has {num_gpus} GPUs for {facts.num_ranks} ranks"
        return missing if request.is_only else ""
    return None


def _measure(facts: JobFacts, done: Diagnosed, folder: Path, request: NcclRequest, say: Say) -> NcclTuning:
    fabric = read_fabric(Path(request.fabric)) if request.fabric is not None else None
    num_ranks = facts.num_ranks or done.job.world_size or 1
    transport = fabric.transport if fabric is not None else request.transport or facts.transport or ""
    gpus = Gpus() if fabric is None else None
    tuning = tune_nccl(
        TuningRequest(
            backend="simulated" if fabric is not None else "nccl",
            transport=transport,
            num_ranks=num_ranks,
            work=work_of(done.job, num_ranks, "the job's own trace"),
            folder=folder / FOLDER,
            time_s=request.time_s,
            fabric=fabric,
            uses_plugin=request.uses_plugin,
            force=True,
        ),
        say,
        _environment(facts),
        gpus.xids() if gpus is not None and gpus.problem is None else None,
    )
    write_new(folder / FOLDER / RESULT_FILE, msgspec.json.encode(tuning), force=True)
    return tuning


def _environment(facts: JobFacts) -> dict[str, str]:
    """Return the environment of the ranks that measure: that of this process, and the job's own variables of NCCL."""
    read = {name: value for name, value in facts.environment.items() if name.startswith(_READ_BY_COMMUNICATION)}
    return {**os.environ, **read}


def kept_measurement(path: Path) -> NcclTuning | None:
    """Return what an interrupted tuning has measured; None if there is nothing that can be read."""
    try:
        return decode_json(read_bytes(path), type=NcclTuning)
    except (OSError, msgspec.DecodeError):
        return None


def _note(tuning: NcclTuning) -> str:
    found = []
    if tuning.settings:
        found.append(" ".join(f"{name}={value}" for name, value in tuning.settings.items()))
    if tuning.table.rows:
        found.append(f"a table of {len(tuning.table.rows)} rows")
    what = " and ".join(found) if found else "nothing that is faster than the default"
    return f"NCCL was measured on {tuning.work.source} ({tuning.num_candidates} candidates): {what}"
