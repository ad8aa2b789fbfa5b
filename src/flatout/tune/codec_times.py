"""Measure what compressing gradients costs on this machine, where a tuning may try it.

In: the facts of a job whose exchange of gradients is exposed. Out: the facts with nanoseconds per byte by compression.
It takes some seconds, once: what was measured is kept in the folder of the tuning. As many processes as this host has
ranks measure at the same time, as ranks compress at the same time: alone, one was up to twice as fast. Where it cannot
be measured, the predictions have the ranges of other machines.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from flatout.change.candidates import share_in_trial
from flatout.input_files import decode_json, read_bytes
from flatout.probe.nvml import Gpus
from flatout.records.change import SAFETIES, JobFacts, Safety
from flatout.records.diagnosis import Diagnosis
from flatout.report.files import write_new

FILE = "codec_times.json"  # in the folder of a tuning
FINDINGS = ("exposed-communication", "redundant-gradient-sync")
MIN_EXPOSED_SHARE = 0.05  # of the step
MOST_RANKS = 8  # whose data are added up in the measurement, and that measure at the same time
LIMIT_S = 60.0
MIN_LEFT_S = 60.0  # of the budget; it takes about 6 s
_WORKER = (sys.executable, "-m", "flatout.inside.gradient_hooks.codec_time")


def with_codec_times(
    facts: JobFacts,
    diagnosis: Diagnosis,
    folder: Path,
    allowed: Safety,
    *,
    left_s: float,
    say: Callable[[str], object],
    worker: Sequence[str] = _WORKER,
) -> JobFacts:
    """Return the facts with what was measured, unchanged where nothing is to be compressed or a measurement fails.

    `left_s` seconds of the budget are left; with less than MIN_LEFT_S, nothing is measured.
    """
    if not _is_asked_for(facts, diagnosis, allowed):
        return facts
    times = kept_times(folder / FILE)
    if times is None:
        if left_s < MIN_LEFT_S:
            return facts
        say("measuring what compressing gradients costs on this machine")
        times = codec_times(
            facts.device or "cpu",
            num_ranks=facts.num_ranks or 2,
            ranks_per_host=facts.ranks_per_host or 1,
            threads=facts.threads_per_rank or 1,
            worker=worker,
        )
        if times is None:
            return facts
        write_new(folder / FILE, msgspec.json.encode(times), force=True)
    return msgspec.structs.replace(facts, codec_ns=times)


def _is_asked_for(facts: JobFacts, diagnosis: Diagnosis, allowed: Safety) -> bool:
    is_exchanged = facts.wrapper == "ddp" and (facts.num_ranks or 1) > 1
    is_elsewhere = facts.launcher == "srun" or (facts.device == "cuda" and not Gpus().facts())
    if not is_exchanged or is_elsewhere or SAFETIES.index(allowed) < SAFETIES.index("rounding"):
        return False
    exposed = sum(share_in_trial(diagnosis, finding) for finding in diagnosis.findings if finding.name in FINDINGS)
    return exposed >= MIN_EXPOSED_SHARE


def kept_times(path: Path) -> dict[str, float] | None:
    """Return what an interrupted tuning has measured; None if there is nothing that can be read."""
    try:
        return decode_json(read_bytes(path), type=dict[str, float])
    except (OSError, msgspec.DecodeError):
        return None


def codec_times(
    device: str, *, num_ranks: int, ranks_per_host: int, threads: int = 1, worker: Sequence[str] = _WORKER
) -> dict[str, float] | None:
    """Return nanoseconds per byte by compression, those of the slowest rank of this host; None if that fails."""
    command = [*worker, device, str(min(num_ranks, MOST_RANKS)), str(threads)]
    num_at_once = min(ranks_per_host, MOST_RANKS) if device == "cpu" else 1  # ranks on GPUs do not share them
    with ThreadPoolExecutor(num_at_once) as pool:
        of_ranks = list(pool.map(_times_of_one, [command] * num_at_once))
    known = [times for times in of_ranks if times is not None]
    if len(known) < num_at_once:
        return None
    return {name: max(times[name] for times in known) for name in known[0]}


def _times_of_one(command: Sequence[str]) -> dict[str, float] | None:
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=LIMIT_S)
        return msgspec.json.decode(done.stdout, type=dict[str, float])
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError):
        return None
