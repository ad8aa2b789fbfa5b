"""Write a job's gain from fixing a defect of a path or link: a bound, or the reason why it is unknown."""

from __future__ import annotations

from flatout import units
from flatout.records.doctor import Gain, GainBasis, Traffic

_TRAFFIC: dict[Traffic, str] = {
    "pcie": "the exposed copies and communication",
    "gpus": "the exposed communication",
    "network": "the exposed communication",
}
_UNKNOWN: dict[GainBasis, str] = {
    "other-host": "unknown: the recording comes from other hosts",
    "no-gpu": "unknown: the recorded job did not use a GPU",
    "no-steps": "unknown: the recording has no complete step",
}


def gain_sentence(gain: Gain) -> str:
    if gain.basis == "one-host":
        return "nothing: the recorded job ran on one host and did not use the network"
    if gain.at_most_s is None or gain.step_share is None:
        return _UNKNOWN[gain.basis]
    bound = f"at most {units.seconds(gain.at_most_s)} per step ({100 * gain.step_share:.1f} % of the step)"
    if gain.basis == "unknown-bandwidth":
        return f"unknown, {bound}, the total time of {_TRAFFIC[gain.traffic]}"
    return f"{bound}: the share of {_TRAFFIC[gain.traffic]} that the missing bandwidth takes"
