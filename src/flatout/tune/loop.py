"""The closed loop: baseline -> profile -> candidates -> screening -> confirmation -> again -> the final claim.

Each round starts from the applied changes, finds the largest cost, and tries changes against it: those that do not
interact together, or else each in one trial. The best set and the applied changes then have trials in turn until the
set is judged, by all trials of both. Rounds follow until no change has an estimated gain of 1 %, or a budget ends. Each
stage takes what is known and returns it with what it found; `StoppedError` carries it out of any of them.
"""

from __future__ import annotations

from typing import NoReturn

from flatout.predict.calibrate import PredictionCalibration
from flatout.records.tuning import TuneResult, TuningEnd
from flatout.tune.apart import take_apart
from flatout.tune.block_screening import narrow_by_blocks
from flatout.tune.confirm import claim_applied, confirm
from flatout.tune.floor import measure_baseline
from flatout.tune.options import TuneOptions
from flatout.tune.progress import Progress, Setup, StoppedError
from flatout.tune.result import tune_result
from flatout.tune.rounds import plan_round, without_tried
from flatout.tune.runner import Runner, Say
from flatout.tune.screening import screen_candidates
from flatout.tune.signals import Interrupts


def tune(
    runner: Runner,
    options: TuneOptions,
    say: Say,
    calibration: PredictionCalibration | None = None,
    interrupts: Interrupts | None = None,
) -> TuneResult:
    """Tune the job that `runner` runs.

    Ctrl-C ends the tuning with what was found so far. Raises InputError if the unchanged command fails, and
    KeyboardInterrupt if nothing was measured yet.
    """
    setup = Setup(
        runner=runner, options=options, say=say, calibration=calibration, interrupts=interrupts or Interrupts()
    )
    try:
        _adopt_changes(setup, measure_baseline(setup))
    except StoppedError as stopped:
        progress, end = stopped.progress, stopped.end
    is_interrupted = end.ended_by == "interrupted"
    if is_interrupted:
        if not progress.evidence.baselines:
            raise KeyboardInterrupt  # there is nothing to report
        say("interrupted: judging the trials so far")
    progress = claim_applied(setup, progress, may_run=not is_interrupted)
    return tune_result(setup, progress, end)


def _adopt_changes(setup: Setup, progress: Progress) -> NoReturn:
    """Adopt the best changes of each round, until StoppedError says why there is no other round."""
    for number in range(1, setup.options.max_rounds + 1):
        progress, this_round = plan_round(setup, progress, number)
        progress, this_round = narrow_by_blocks(setup, progress, this_round)
        progress, screening = screen_candidates(setup, progress, this_round)
        applied_before = progress.applied
        progress = confirm(setup, progress, this_round, screening)
        if progress.applied == applied_before:
            progress = without_tried(progress, this_round)
        else:
            progress = take_apart(setup, progress, this_round)
    raise StoppedError(progress, TuningEnd(ended_by="max_rounds", limit=setup.options.max_rounds))
