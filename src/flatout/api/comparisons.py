"""`diff`: two diagnoses, recordings or logs of trainings -> what changed from the first to the second, one run each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flatout.api.arguments import AnyPath, Progress, path_of

if TYPE_CHECKING:
    from flatout.api.results import DiffResult, LogDiffResult
    from flatout.records.diagnosis import Diagnosis


def diff(before: AnyPath, after: AnyPath, *, progress: Progress | None = None) -> DiffResult | LogDiffResult:
    """Compare two runs, part by part and finding by finding; two sizes of one job by their scaling efficiency.

    `before` and `after` are each traces, a recording, or a diagnosis saved with `--json`. Two logs of Megatron-LM,
    NeMo, DeepSpeed, torchtitan or MLPerf are compared by their step times and rates. `progress` is called as by
    `diagnose`. For a verdict, use `compare`: it runs both in turn.

    Raises InputError if one of them cannot be read, and if only one of them is a log.
    """
    from flatout.api.results import DiffResult, LogDiffResult
    from flatout.training_log_pipeline import log_change

    a, b = path_of(before), path_of(after)
    typed = ("flatout", "diff", str(a), str(b))
    change = log_change(a, b)
    if change is not None:
        return LogDiffResult.of(change, _typed=typed)
    from flatout.compare.environment import environment_differences, facts_of
    from flatout.report.diff import diff as compare

    first, second = _diagnosis(a, progress), _diagnosis(b, progress)
    result = compare(first, second, environment_differences(facts_of(a), facts_of(b), (), ()))
    return DiffResult.of(result, _typed=typed, _diagnoses=(first, second))


def _diagnosis(path: Path, progress: Progress | None) -> Diagnosis:
    """Read a saved diagnosis; diagnose anything else."""
    from flatout.api.traces import diagnose
    from flatout.report.json import is_diagnosis, read_diagnosis

    if is_diagnosis(path):
        return read_diagnosis(path)
    return diagnose(path, progress=progress)
