"""Arrange the changes of a tuning in rows: those of the final set, each once, and the others that were tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flatout.records.change import SAFETIES, Change, Safety
from flatout.records.prediction import Prediction
from flatout.records.tuning import TriedOutcome, TriedSet, TunedChange, TuneResult
from flatout.records.verdict import Verdict

OUTCOME_MEANINGS: Mapping[TriedOutcome, str] = {
    "adopted": "better in repeated trials, and kept",
    "not confirmed": "looked better in one trial, but further trials did not confirm it",
    "not better": "not better in its own trial, which gives an estimate, not a verdict",
    "not reached": "chosen, but too few trials were run to judge its gain",
    "unsafe": "changes the training result, cannot be checked, or needs too much memory: it is not used",
    "over the limit": "its calls take longer than --latency allows: it is not used",
    "out of memory": "a rank ran out of device memory",
    "failed": "the job ended with an error, or did not report the judged quantity",
    "not applied": "the setting did not reach the job, so its effect is unknown",
}
OUTCOME_ORDER: tuple[TriedOutcome, ...] = tuple(OUTCOME_MEANINGS)


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the accepted changes: one change, or several that were confirmed only together."""

    changes: tuple[Change, ...]
    verdict: Verdict | None
    prediction: Prediction | None
    bound: float | None
    not_shown: tuple[str, ...] = ()  # names of changes that looked no better than noise alone
    only_together: tuple[str, ...] = ()  # names of changes that had no separate trial

    @property
    def name(self) -> str:
        return " + ".join(change.name for change in self.changes)

    @property
    def safety(self) -> Safety:
        return max((change.safety for change in self.changes), key=SAFETIES.index)


def adopted_rows(result: TuneResult) -> tuple[Adopted, ...]:
    """Return the rows of the final set's changes, in the order of their adoption; each change is in one row."""
    final = {change.name: change for change in result.tuning.changes.changes}
    tuned = {each.change.name: each for each in result.tuning.each}
    adopted_in = _adopted_sets(result)

    rows: list[Adopted] = []
    without_row = list(final)  # in the order of adoption
    while without_row:
        first = without_row[0]
        together = adopted_in.get(first)
        names = _confirmed_with(first, tuned, together, without_row)
        without_row = [name for name in without_row if name not in names]
        rows.append(_row([final[name] for name in names], tuned, together))
    return tuple(rows)


def _confirmed_with(
    name: str, tuned: Mapping[str, TunedChange], together: TriedSet | None, without_row: Sequence[str]
) -> list[str]:
    """Return the changes of a row: one that has a verdict, or all that were adopted together."""
    has_own_verdict = name in tuned and tuned[name].verdict is not None
    if together is None or has_own_verdict:
        return [name]
    return [other for other in together.changes if other in without_row]


def _row(changes: Sequence[Change], tuned: Mapping[str, TunedChange], together: TriedSet | None) -> Adopted:
    names = [change.name for change in changes]
    alone = tuned.get(names[0])
    verdict = alone.verdict if alone is not None else None
    if verdict is None and together is not None:
        verdict = together.verdict
    tuned_here = [tuned[name] for name in names if name in tuned]
    return Adopted(
        changes=tuple(changes),
        verdict=verdict,
        prediction=_adopted_prediction(names, alone, together),
        bound=_adopted_bound(changes[0], together) if len(names) == 1 else None,
        not_shown=tuple(each.change.name for each in tuned_here if not each.is_shown_alone),
        only_together=tuple(each.change.name for each in tuned_here if not each.had_own_trial),
    )


def _adopted_sets(result: TuneResult) -> dict[str, TriedSet]:
    """Return, for each change, the last adopted set that it was tried in."""
    adopted_in: dict[str, TriedSet] = {}
    for tried in result.tried:
        if tried.outcome == "adopted":
            adopted_in.update(dict.fromkeys(tried.changes, tried))
    return adopted_in


def _adopted_prediction(
    names: Sequence[str], alone: TunedChange | None, together: TriedSet | None
) -> Prediction | None:
    """Return the prediction for exactly these changes; the prediction for a subset of a tried set is unknown."""
    if len(names) == 1 and alone is not None and alone.prediction is not None:
        return alone.prediction
    if together is not None and sorted(together.changes) == sorted(names):
        return together.prediction
    return None


def _adopted_bound(change: Change, together: TriedSet | None) -> float | None:
    if together is not None and together.bound is not None:
        return together.bound
    return change.predicted_speedup


def not_adopted(result: TuneResult) -> tuple[TriedSet, ...]:
    """Return the changes that were tried but are not in the final set, by outcome, then by trial order."""
    final = {change.name for change in result.tuning.changes.changes}
    left = [one for one in result.tried if one.outcome != "adopted" or not final.issuperset(one.changes)]
    return tuple(sorted(left, key=lambda one: OUTCOME_ORDER.index(one.outcome)))


def not_shown_sentence(rows: Sequence[Adopted]) -> str:
    """Name the changes that may gain nothing; empty if there are none."""
    names = [name for row in rows for name in row.not_shown]
    if not names:
        return _only_together(rows)
    return f"Not shown alone: {', '.join(names)}. Its own trial was no better than noise, so it possibly gains nothing."


def _only_together(rows: Sequence[Adopted]) -> str:
    """Name the changes that had a trial only together with others; empty if there are none."""
    names = [name for row in rows for name in row.only_together]
    if not names:
        return ""
    return f"Tried only together: {', '.join(names)}. Any one of them possibly gains nothing."
