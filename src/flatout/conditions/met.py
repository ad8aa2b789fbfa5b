"""Say which conditions of `--fail-on` a result meets. In: a result and `Condition`s. Out: one sentence for each.

An unknown goodput or efficiency is too low: a job that measures nothing must not pass. No other unknown number meets a
condition.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout.conditions.words import Condition
from flatout.records.ceilings import Ceilings
from flatout.records.diagnosis import Diagnosis
from flatout.records.ledger import LedgerReport
from flatout.records.tuning import TuneResult
from flatout.report.diff import DiagnosisDiff
from flatout.units import percent


def met_by_diagnosis(diagnosis: Diagnosis, conditions: Sequence[Condition]) -> list[str]:
    met = []
    for condition in conditions:
        for finding in diagnosis.findings:
            is_large = condition.share is not None and finding.share_of_step >= condition.share
            if is_large or finding.name == condition.word:
                met.append(f"{finding.name}: {percent(finding.share_of_step)} of the step")
    return list(dict.fromkeys(met))


def met_by_diff(result: DiagnosisDiff, conditions: Sequence[Condition]) -> list[str]:
    met = []
    for condition in conditions:
        share = condition.share or 0.0
        if condition.word == "slower" and result.scaling is None and result.speedup:
            slowdown = 1 / result.speedup - 1
            if slowdown >= share:
                met.append(f"B takes {percent(slowdown)} more time for the same work, one run each")
        elif condition.word == "efficiency" and result.scaling is not None:
            efficiency = result.scaling.efficiency
            if efficiency is None:
                met.append("the scaling efficiency is unknown")
            elif efficiency < share:
                met.append(f"the scaling efficiency is {percent(efficiency)}")
        elif condition.word == "new-finding":
            met += [f"{finding.name} is new in B" for finding in result.findings if finding.state == "new"]
    return list(dict.fromkeys(met))


def met_by_tuning(result: TuneResult, conditions: Sequence[Condition]) -> list[str]:
    verdict = result.tuning.verdict
    gain = None
    if verdict is not None and verdict.verdict == "better" and verdict.speedup is not None:
        gain = verdict.speedup - 1
    is_undecided = (verdict is not None and verdict.verdict == "undecided") or any(
        tried.verdict is not None and tried.verdict.verdict == "undecided" for tried in result.tried
    )
    met = []
    for condition in conditions:
        if condition.word == "gain" and gain is not None and gain >= (condition.share or 0.0):
            met.append(f"changes gain {percent(gain)}")
        elif condition.word == "no-gain" and gain is None:
            met.append("no change is shown to be better")
        elif condition.word == "undecided" and gain is None and is_undecided:
            met.append("the trials do not decide whether a change is better")
    return met


def met_by_ceilings(ceilings: Ceilings, conditions: Sequence[Condition]) -> list[str]:
    met = []
    for condition in conditions:
        if condition.word == "peer":
            share = condition.share or 0.0
            met += [f"{peer.name}: {peer.peer} differs by {percent(abs(peer.by))}" for peer in ceilings.peers
                    if abs(peer.by) >= share]  # fmt: skip
        elif condition.word == "slow-link":
            slow = [one for one in ceilings.measurements if one.pcie is not None and one.pcie.is_below]
            met += [f"{one.name}: the PCIe link is below what both ends support" for one in slow]
        elif condition.word == "not-measured":
            met += [f"{name} was not measured: {reason}" for name, reason in ceilings.not_measured.items()]
    return list(dict.fromkeys(met))


def met_by_ledger(report: LedgerReport, conditions: Sequence[Condition]) -> list[str]:
    met = []
    for condition in conditions:
        if condition.word == "goodput":
            if report.goodput is None:
                met.append("the goodput is unknown")
            elif report.goodput < (condition.share or 0.0):
                met.append(f"the goodput is {percent(report.goodput)}")
        elif condition.word == "failures" and report.failures:
            met.append(f"failed attempts: {report.failures}")
        elif condition.word == "hangs" and report.hangs:
            met.append(f"hangs: {report.hangs}")
        else:
            met += _classes(report, condition)
    return met


def _classes(report: LedgerReport, condition: Condition) -> list[str]:
    return [
        f"{one.name}: {percent(one.share)} of the allocated time"
        for one in report.classes
        if one.name == condition.word and one.share is not None and one.share >= (condition.share or 0.0)
    ]
