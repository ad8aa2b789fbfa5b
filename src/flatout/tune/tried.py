"""Records of what became of a set of changes that was chosen for a trial."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.predict.calibrate import PredictionCalibration
from flatout.predict.predict import predict_together
from flatout.records.change import SAFETIES, Change
from flatout.records.prediction import NoPrediction, Prediction
from flatout.records.tuning import TriedOutcome, TriedSet
from flatout.records.verdict import Verdict
from flatout.tune.progress import Round, Setup


def tried_set(
    setup: Setup,
    this_round: Round,
    added: Sequence[Change],
    outcome: TriedOutcome,
    reason: str,
    *,
    screened: float | None = None,
    verdict: Verdict | None = None,
) -> TriedSet:
    """Return the record of changes that were added to the applied ones."""
    alone = added[0] if len(added) == 1 else None
    return TriedSet(
        name=" + ".join(change.name for change in added),
        changes=tuple(change.name for change in added),
        safety=max((change.safety for change in added), key=SAFETIES.index),
        round=this_round.number,
        bound=alone.predicted_speedup if alone is not None else None,
        predicted_from=alone.predicted_from if alone is not None else (),
        prediction=_prediction_of(this_round, added, setup.calibration),
        outcome=outcome,
        screened=screened,
        verdict=verdict,
        reason=reason,
    )


def not_reached(
    setup: Setup, this_round: Round, change: Change, reason: str, *, screened: float | None = None
) -> TriedSet:
    """Return the record of a change that was chosen, and whose outcome is still unknown."""
    return tried_set(setup, this_round, (change,), "not reached", reason, screened=screened)


def _prediction_of(
    this_round: Round, added: Sequence[Change], calibration: PredictionCalibration | None
) -> Prediction | None:
    """Predict several changes by one replay with all of them, because their savings overlap.

    None if one of them has no prediction: the measurement then includes its unknown gain.
    """
    if len(added) == 1:
        return this_round.predictions.get(added[0].name)
    if not this_round.predictions.keys() >= {change.name for change in added}:
        return None
    if this_round.situation is None or isinstance(this_round.situation, NoPrediction):
        return None
    prediction = predict_together(this_round.situation, added, calibration)
    return prediction if isinstance(prediction, Prediction) else None
