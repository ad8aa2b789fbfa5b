"""Add the measurements of a recording to the diagnosis of its traces: rates, MFU, memory, and causes on the hosts.

The findings come from the traces. The recording adds their causes: busy cores behind a slow loader, a busy disk or
network, a GPU with throttled clocks.
"""

from __future__ import annotations

import msgspec

from flatout.diagnose.host_evidence import (
    HostEvidenceOf,
    foreign_share,
    foreign_words,
    hosts_of,
    often_throttled,
)
from flatout.diagnose.rules import RULES
from flatout.records.cores import FOREIGN_CORES
from flatout.records.diagnosis import Diagnosis, Finding
from flatout.records.events import Quality
from flatout.records.recorded_time import RecordedTime
from flatout.records.recording import Recording
from flatout.units import percent

_HOST_EVIDENCE: dict[str, tuple[HostEvidenceOf, ...]] = {
    rule.NAME: rule.HOST_EVIDENCE for rule in RULES if hasattr(rule, "HOST_EVIDENCE")
}


def with_recording(diagnosis: Diagnosis, recording: Recording, recorded: RecordedTime | None = None) -> Diagnosis:
    """Return the diagnosis with the recording's measurements and problems, and the causes of its findings.

    `recorded` is the time of the whole recording, if it has ordinary steps.
    """
    measured = recording.measured
    job = msgspec.structs.replace(
        diagnosis.job,
        num_recorded_steps=measured.num_steps,
        mean_step_s=measured.mean_step_s,
        first_wait_s=measured.first_wait_s,
        samples_per_s=measured.samples_per_s,
        tokens_per_s=measured.tokens_per_s,
        mfu=measured.mfu,
        regular_step_s=measured.regular_step_s,
        regular_samples_per_s=measured.regular_samples_per_s,
        regular_tokens_per_s=measured.regular_tokens_per_s,
        regular_mfu=measured.regular_mfu,
        mfu_against=measured.mfu_against,
        peak_memory_bytes=measured.peak_memory_bytes,
        reasons=measured.reasons,
    )
    return msgspec.structs.replace(
        diagnosis,
        job=job,
        findings=tuple(_explained(finding, recording) for finding in diagnosis.findings),
        data_quality=(*diagnosis.data_quality, *recording.problems, *_throttled(recording), *_foreign(recording)),
        recorded=msgspec.UNSET if recorded is None else recorded,
    )


def _explained(finding: Finding, recording: Recording) -> Finding:
    """Return the finding with the host evidence that its rule lists."""
    on = hosts_of(finding.ranks, recording)
    if not on.hosts:
        return finding
    evidence, clauses = dict(finding.evidence), [finding.title]
    changes: list[str] = []
    later_changes: list[str] = []
    for gather in _HOST_EVIDENCE.get(finding.name, ()):
        gathered = gather(on)
        evidence |= gathered.evidence
        if gathered.cause is not None:
            clauses.append(gathered.cause)
        changes += gathered.changes
        later_changes += gathered.later_changes
    return msgspec.structs.replace(
        finding,
        title="; ".join(clauses),
        evidence=evidence,
        changes=tuple(dict.fromkeys((*changes, *finding.changes, *later_changes))),
    )


def _foreign(recording: Recording) -> list[Quality]:
    """Report hosts where other processes used the job's cores: all times are those of a shared machine."""
    return [
        Quality(
            problem=f"on {host.hostname} {foreign_words(host)}",
            effect="steps took longer than on a machine without them, and the diagnosis may show their effect",
        )
        for host in recording.hosts
        if foreign_share(host) >= FOREIGN_CORES
    ]


def _throttled(recording: Recording) -> list[Quality]:
    return [
        Quality(
            problem=f"the clocks of GPU {gpu.index} on {host.hostname} were throttled"
            f" ({', '.join(f'{reason} {percent(share)} of the time' for reason, share in often.items())})",
            effect="its compute took longer than at full clocks",
        )
        for host in recording.hosts
        for gpu in host.gpus
        if (often := often_throttled(gpu))
    ]
