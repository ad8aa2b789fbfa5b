"""Estimate a job's gain per step if a defect of a path or link is fixed, from the exposed time of its traffic.

In: a check that failed or warned, and the times of the job. Out: a `Gain`: an upper bound, or why there is none. The
bound is the exposed time of the traffic on that path, times the share of the bandwidth that the defect takes; where
that share is unknown, the gain is unknown, and the whole exposed time is its bound.
"""

from __future__ import annotations

from flatout.doctor.outcome import CheckOutcome
from flatout.records.doctor import Gain, JobTraffic, Traffic


def gain_of(traffic: Traffic | None, outcome: CheckOutcome, job: JobTraffic, host: str | None) -> Gain | None:
    """Return the gain from the fix; None if the check does not concern a path or link, or does not find a defect."""
    if traffic is None or outcome.status not in ("fail", "warn"):
        return None
    if job.step_s is None:
        return Gain(traffic=traffic, basis="no-steps")
    if host is not None and job.hosts and not _is_of_job(host, job.hosts):
        return Gain(traffic=traffic, basis="other-host")
    if traffic == "network" and job.num_hosts == 1:
        return Gain(traffic=traffic, basis="one-host", at_most_s=0.0, step_share=0.0)
    if traffic != "network" and not job.has_gpu:
        return Gain(traffic=traffic, basis="no-gpu")
    exposed_s = _exposed_s(traffic, job)
    if outcome.bandwidth_share is None:
        return Gain(traffic=traffic, basis="unknown-bandwidth", at_most_s=exposed_s, step_share=exposed_s / job.step_s)
    at_most_s = exposed_s * (1 - outcome.bandwidth_share)
    return Gain(traffic=traffic, basis="bandwidth", at_most_s=at_most_s, step_share=at_most_s / job.step_s)


def _exposed_s(traffic: Traffic, job: JobTraffic) -> float:
    """Return the exposed seconds per step of this traffic, on the rank that has the most of it."""
    if traffic == "pcie":  # copies, and messages between GPUs and to NICs, which pass the same link
        return job.copies_s + job.transfer_s
    return job.transfer_s


def _is_of_job(host: str, hosts: tuple[str, ...]) -> bool:
    """Whether the host belongs to the job; one of the two names may lack the domain."""
    short = host.partition(".")[0]
    return any(short == other.partition(".")[0] for other in hosts)
