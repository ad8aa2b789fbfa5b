"""Say which conditions of `--fail-on` a result meets. In: a result and `Condition`s. Out: one sentence for each.

An unknown goodput or efficiency is too low: a job that measures nothing must not pass. No other unknown number meets a
condition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from flatout.conditions.words import Condition
from flatout.errors import UsageError
from flatout.records.ceilings import Ceilings
from flatout.records.diagnosis import Diagnosis
from flatout.records.ledger import LedgerReport
from flatout.records.step_series import LogChange
from flatout.records.tuning import TuneResult
from flatout.report.diff import DiagnosisDiff
from flatout.units import percent

Result = TypeVar("Result")
_Check = Callable[[Result, float], list[str]]  # a result and the share of the condition -> the sentences


def _met(checks: Mapping[str, _Check[Result]], result: Result, conditions: Sequence[Condition]) -> list[str]:
    """Return the sentences of all conditions, each once."""
    sentences: list[str] = []
    for condition in conditions:
        sentences += checks[condition.word](result, condition.share or 0.0)
    return list(dict.fromkeys(sentences))


def met_by_diagnosis(diagnosis: Diagnosis, conditions: Sequence[Condition]) -> list[str]:
    met = []
    for condition in conditions:
        for finding in diagnosis.findings:
            is_named = finding.name == condition.word
            is_large = condition.share is not None and finding.share_of_step >= condition.share
            if is_named or is_large:
                met.append(f"{finding.name}: {percent(finding.share_of_step)} of the step")
    return list(dict.fromkeys(met))


def met_by_diff(result: DiagnosisDiff, conditions: Sequence[Condition]) -> list[str]:
    checks = {"slower": _slower, "efficiency": _inefficient, "new-finding": _new_findings}
    return _met(checks, result, conditions)


def met_by_log_change(result: LogChange, conditions: Sequence[Condition]) -> list[str]:
    """Return the conditions that hold. Raises UsageError for those that need traces."""
    for condition in conditions:
        if condition.word != "slower":
            raise UsageError(
                f"`--fail-on {condition.word}` needs traces, but both files are logs of trainings",
                hint="for logs: --fail-on slower=PERCENT",
            )
    return _met({"slower": _slower_log}, result, conditions)


def _slower_log(result: LogChange, share: float) -> list[str]:
    slowdown = 1 / result.speedup - 1
    return [f"B takes {percent(slowdown)} more time for the same work, one run each"] if slowdown >= share else []


def _slower(result: DiagnosisDiff, share: float) -> list[str]:
    if result.scaling is not None or not result.speedup:
        return []
    slowdown = 1 / result.speedup - 1
    return [f"B takes {percent(slowdown)} more time for the same work, one run each"] if slowdown >= share else []


def _inefficient(result: DiagnosisDiff, share: float) -> list[str]:
    if result.scaling is None:
        return []
    efficiency = result.scaling.efficiency
    if efficiency is None:
        return ["the scaling efficiency is unknown"]
    return [f"the scaling efficiency is {percent(efficiency)}"] if efficiency < share else []


def _new_findings(result: DiagnosisDiff, share: float) -> list[str]:
    return [f"{finding.name} is new in B" for finding in result.findings if finding.state == "new"]


def met_by_tuning(result: TuneResult, conditions: Sequence[Condition]) -> list[str]:
    checks = {"gain": _gain, "no-gain": _no_gain, "undecided": _undecided}
    return _met(checks, result, conditions)


def _shown_gain(result: TuneResult) -> float | None:
    """Return the gain of the accepted changes; None if no change is shown to be better."""
    verdict = result.tuning.verdict
    if verdict is None or verdict.verdict != "better" or verdict.speedup is None:
        return None
    return verdict.speedup - 1


def _gain(result: TuneResult, share: float) -> list[str]:
    gain = _shown_gain(result)
    return [f"changes gain {percent(gain)}"] if gain is not None and gain >= share else []


def _no_gain(result: TuneResult, share: float) -> list[str]:
    return ["no change is shown to be better"] if _shown_gain(result) is None else []


def _undecided(result: TuneResult, share: float) -> list[str]:
    verdicts = [result.tuning.verdict, *(tried.verdict for tried in result.tried)]
    is_undecided = any(verdict is not None and verdict.verdict == "undecided" for verdict in verdicts)
    if _shown_gain(result) is not None or not is_undecided:
        return []
    return ["the trials do not decide whether a change is better"]


def met_by_ceilings(ceilings: Ceilings, conditions: Sequence[Condition]) -> list[str]:
    checks = {"peer": _differing_peers, "slow-link": _slow_links, "not-measured": _not_measured}
    return _met(checks, ceilings, conditions)


def _differing_peers(ceilings: Ceilings, share: float) -> list[str]:
    peers = [peer for peer in ceilings.peers if abs(peer.by) >= share]
    return [f"{peer.name}: {peer.peer} differs by {percent(abs(peer.by))} from its peers" for peer in peers]


def _slow_links(ceilings: Ceilings, share: float) -> list[str]:
    slow = [copy for copy in ceilings.measurements if copy.pcie is not None and copy.pcie.is_below]
    return [f"{copy.name}: the PCIe link is below what both of its ends support" for copy in slow]


def _not_measured(ceilings: Ceilings, share: float) -> list[str]:
    return [f"{name} was not measured: {reason}" for name, reason in ceilings.not_measured.items()]


def met_by_ledger(report: LedgerReport, conditions: Sequence[Condition]) -> list[str]:
    checks: dict[str, _Check[LedgerReport]] = {
        "goodput": _low_goodput,
        "failures": lambda ledger, _: [f"failed attempts: {ledger.failures}"] if ledger.failures else [],
        "hangs": lambda ledger, _: [f"hangs: {ledger.hangs}"] if ledger.hangs else [],
    }
    classes = [condition for condition in conditions if condition.word not in checks]
    others = [condition for condition in conditions if condition.word in checks]
    return [*_met(checks, report, others), *_large_classes(report, classes)]


def _low_goodput(report: LedgerReport, share: float) -> list[str]:
    if report.goodput is None:
        return ["the goodput is unknown"]
    return [f"the goodput is {percent(report.goodput)}"] if report.goodput < share else []


def _large_classes(report: LedgerReport, conditions: Sequence[Condition]) -> list[str]:
    limits = {condition.word: condition.share or 0.0 for condition in conditions}
    known = [(part.name, part.share) for part in report.classes if part.name in limits and part.share is not None]
    return [f"{name}: {percent(share)} of the allocated time" for name, share in known if share >= limits[name]]
