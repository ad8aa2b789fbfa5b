"""Judge a Snapshot into a DoctorReport: every check, and the topology."""

from __future__ import annotations

from flatout.doctor.check import run_check
from flatout.doctor.checks import CHECKS
from flatout.doctor.graph import topology_of
from flatout.doctor.machine import Machine
from flatout.records.doctor import FAMILIES, STATUSES, DoctorReport, JobTraffic
from flatout.records.snapshot import Snapshot


def judge_machine(snapshot: Snapshot, job: JobTraffic | None = None) -> DoctorReport:
    """Run every check and, if a job is given, estimate its gain from each fix.

    The results are in the order of families; within a family, the most urgent come first.
    """
    machine = Machine(snapshot)
    results = [run_check(check, machine, job) for check in CHECKS]
    results.sort(key=lambda result: (FAMILIES.index(result.family), STATUSES.index(result.status)))
    return DoctorReport(
        host=snapshot.host,
        taken_at=snapshot.taken_at,
        read_from=snapshot.read_from,
        checks=tuple(results),
        topology=topology_of(machine),
    )
