"""`compress`: a model in two commands of the user -> its compressed variants, and which of them are recommended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flatout.api.arguments import (
    AnyPath,
    Say,
    check_main_thread,
    check_range,
    optional_path,
    say_to_stderr,
)
from flatout.api.jobs import LEAST_TRIALS, MAX_BUDGET_S, new_folder

if TYPE_CHECKING:
    from flatout.api.results import CompressionResult


def compress(
    evaluation: str,
    benchmark: str,
    *,
    metric: str,
    max_loss: str,
    model: AnyPath | None = None,
    final_evaluation: str | None = None,
    batches: Sequence[int] = (),
    variants: Sequence[str] = (),
    lower_is_better: bool | None = None,
    budget_s: float = 3600.0,
    trials: int | None = None,
    out: AnyPath | None = None,
    force: bool = False,
    typed: Sequence[str] = (),
    say: Say = say_to_stderr,
) -> CompressionResult:
    """Find the compressed variants of a model that are faster or smaller, and no worse than a limit.

    The command `evaluation` prints `metric`, and `benchmark` calls the model again and again; in both, `{model}` stands
    for `model`, a folder or a file of ONNX. `max_loss` is a share of the metric such as `1%`, or an amount such as
    `0.5`. `final_evaluation` is an evaluation on data that chose nothing; without it, every second sample of
    `evaluation` is held out. `batches` are the sizes for `{batch}` in `benchmark`, `variants` the names to try
    (default: all that this machine can), and `lower_is_better` is the direction of the metric (default: by its name).
    `budget_s` limits the search. Variants and results are written to `out` (default: `flatout-out/compress-TIME`); the
    same call resumes an interrupted search there. `typed` is the command that the result names, and `say` is called
    with each line of progress.

    Raises UsageError for options that do not fit each other, and InputError if the untouched model cannot be evaluated.
    Ctrl-C ends the search with what was found so far.
    """
    from flatout.api.results import CompressionResult
    from flatout.compress.command import CompressCommand
    from flatout.compress.commands import check_batches, is_higher_better, parse_max_loss, user_command
    from flatout.tune.result_folder import SearchLimits

    check_main_thread("compress")
    check_range("budget_s", budget_s, least=1.0, most=MAX_BUDGET_S)
    check_range("trials", trials, least=LEAST_TRIALS)
    folder = optional_path(out) or new_folder("compress")
    command = CompressCommand(
        evaluation=user_command("--eval", evaluation),
        benchmark=user_command("--bench", benchmark),
        final=None if final_evaluation is None else user_command("--eval-final", final_evaluation),
        metric=metric,
        max_loss=parse_max_loss(max_loss),
        is_higher_better=is_higher_better(metric) if lower_is_better is None else not lower_is_better,
        limits=SearchLimits(folder=folder, budget_s=budget_s, max_trials=trials, force=force),
        model=optional_path(model),
        variants=tuple(variants),
        batches=check_batches(batches),
    )
    shown = tuple(typed) or ("flatout", "compress", "--eval", evaluation, "--bench", benchmark)
    result = CompressionResult.of(command.run(say), _folder=folder, _typed=shown)
    for line in command.write(result, shown):
        say(line)
    return result
