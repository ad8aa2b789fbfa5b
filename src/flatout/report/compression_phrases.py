"""The sentences about a compression that text and HTML share."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from flatout.records.compression import (
    RECOMMENDED,
    Compression,
    CompressionEndedBy,
    LossMethod,
    LossVerdict,
    MaxLoss,
    MemoryKind,
    Refusal,
    ScreenedSpeed,
    SpeedAt,
    VariantResult,
    variant_file_name,
)
from flatout.report.phrases import counted
from flatout.units import num_bytes, percent, seconds

UNKNOWN = "unknown"
ENDED_WORDS: Mapping[CompressionEndedBy, str] = {
    "all_tried": "every variant was tried",
    "budget": "the time limit was reached",
    "interrupted": "it was interrupted",
}
_METHOD_WORDS: Mapping[LossMethod, str] = {
    "paired_exact": "answers compared sample by sample, exact test",
    "paired_mean": "results compared sample by sample",
    "unpaired": "shares of as many samples, not compared sample by sample",
    "none": "not compared",
}
REFUSAL_WORDS: Mapping[Refusal, str] = {
    "not_applied": "not applied",
    "failed": "failed",
    "inferior": "its loss is above the limit",
    "loss_not_shown": "its loss is not shown to be below the limit",
    "slower": "slower than the untouched model",
    "looks_slower": "looks slower in one start: not compared further",
    "speed_not_shown": "not shown to be as fast as the untouched model",
    "no_gain": "neither faster nor smaller",
    "no_held_out_data": "no data were held out to judge it: pass --eval-final, or print the result of each sample",
    "another_chosen": "another variant is faster or smaller",
}


# The head of the column of memory.
MEMORY_NAMES: Mapping[MemoryKind | None, str] = {
    "gpu_peak": "peak GPU memory",
    "resident_peak": "peak memory",
    "resident_peak_with_start": "peak memory, start included",
    None: "memory",
}


def headline(result: Compression) -> str:
    """Return what was found, in one sentence."""
    if not result.recommended:
        return (
            f"no variant is recommended: {ENDED_WORDS[result.ended_by]}, and none is shown to be faster or smaller"
            f" with a loss below {limit_words(result.max_loss, result.metric)}"
        )
    parts = [f"{variant.name} ({gain_words(variant, result)})" for variant in _recommended(result)]
    return f"recommended: {'; '.join(parts)}"


def next_command(result: Compression, folder: Path | str) -> str:
    """Return the command that runs a script with the first recommended variant; without one, that shows all numbers."""
    if not result.recommended:
        return f"less {folder}/compress.json"
    return f"sh {folder}/{RECOMMENDED}/{variant_file_name(result.recommended[0])}.sh"


def _recommended(result: Compression) -> list[VariantResult]:
    return [variant for variant in result.variants if variant.is_recommended]


def gain_words(variant: VariantResult, result: Compression) -> str:
    parts = [speed_words(speed) for speed in variant.speeds]
    if variant.disk_bytes and result.untouched.disk_bytes:
        parts.append(f"{percent(variant.disk_bytes / result.untouched.disk_bytes)} of the size")
    if variant.final is not None:
        parts.append(loss_words(variant.final, result))
    return ", ".join(parts)


def limit_words(limit: MaxLoss, metric: str) -> str:
    return f"{percent(limit.value)} of {metric}" if limit.is_relative else f"{limit.value:g} {metric}"


def amount(loss: float, limit: MaxLoss) -> str:
    """Return a loss in the unit of the limit; below 0 it is a gain."""
    if limit.is_relative:
        return percent(loss)
    return f"{loss:.3g}"


def loss_words(verdict: LossVerdict, result: Compression) -> str:
    """Say how large the loss is, what is shown about it, and by which test."""
    if verdict.outcome == "unknown":
        return f"loss {amount(verdict.loss, result.max_loss)}, of which nothing can be shown: {verdict.reason}"
    most = "" if verdict.most_loss is None else f", below {amount(verdict.most_loss, result.max_loss)}"
    level = percent(1 - verdict.level)
    samples = counted(verdict.num_samples or 0, "sample")
    return f"loss {amount(verdict.loss, result.max_loss)}{most} at {level} ({samples})"


def speed_words(speed: SpeedAt) -> str:
    """Return a speedup with its interval and the trials behind it."""
    verdict = speed.verdict
    at = "" if speed.batch is None else f" at batch {speed.batch}"
    if verdict.speedup is None or verdict.interval is None:
        return f"speed{at} undecided: {verdict.reason}"
    low, high = verdict.interval
    return (
        f"{verdict.speedup:.2f}x{at} ({low:.2f} to {high:.2f}, {verdict.verdict}, "
        f"{verdict.num_candidates} trials against {verdict.num_baselines})"
    )


def screened_words(screened: ScreenedSpeed) -> str:
    """Return the speed of a variant in one start, and that this proves nothing."""
    at = "" if screened.batch is None else f" at batch {screened.batch}"
    untouched = counted(screened.num_untouched, "start")
    slower = "it looks slower and was not compared further" if screened.looks_slower else "it was not compared"
    return (
        f"{screened.speedup:.2f}x{at} in one start, against {untouched} of the untouched model: {slower}; one start "
        "proves nothing"
    )


def facts(result: Compression) -> list[str]:
    """Return the conditions of the result, a sentence each."""
    direction = "higher" if result.is_higher_better else "lower"
    num_samples = result.evaluation.num_samples
    of_samples = f"{num_samples:,} samples" if num_samples is not None else "an unknown number of samples"
    lines = [
        f"evaluation: {shlex.join(result.eval_command)}",
        f"benchmark: {shlex.join(result.bench_command)}",
        f"untouched: {result.metric} {result.evaluation.value:.4g} on {of_samples}, {direction} is better; the largest "
        f"acceptable loss is {limit_words(result.max_loss, result.metric)}",
        f"{counted(result.num_trials, 'trial')} of the benchmark in turn{_screening_words(result)}, in "
        f"{seconds(result.took_s)}; it ended because {ENDED_WORDS[result.ended_by]}",
    ]
    if result.is_repeatable is False:
        lines.append(
            "two evaluations of the untouched model differ sample by sample, so samples are not compared one by one"
        )
    if num_samples is None:
        lines.append(
            f"the number of samples is unknown, so no loss can be shown to be small: print `{result.metric}=... n=...`"
        )
    return lines


def _screening_words(result: Compression) -> str:
    if not result.num_screening_starts:
        return ""
    return f", after {counted(result.num_screening_starts, 'start')} to screen the variants"


def header(result: Compression) -> tuple[str, ...]:
    batches = [f"speed, batch {batch}" for batch in result.batches] or ["speed"]
    return (
        "variant",
        result.metric,
        "loss (95 %)",
        *batches,
        "disk",
        MEMORY_NAMES[_memory_kind(result)],
        "load",
        "outcome",
    )


def _memory_kind(result: Compression) -> MemoryKind | None:
    """Return what the memory of all variants is; None if it is unknown, or not the same of all."""
    kinds = {variant.memory_kind for variant in (result.untouched, *result.variants) if variant.memory_bytes}
    return kinds.pop() if len(kinds) == 1 else None


def cells(variant: VariantResult, result: Compression) -> tuple[str, ...]:
    """Return the cells of a variant's row."""
    search = variant.search
    metric = UNKNOWN if search is None else f"{search.variant:.4g}"
    return (
        variant.name,
        metric,
        _loss_cell(search, result.max_loss),
        *_speed_cells(variant, len(result.batches) or 1),
        _bytes(variant.disk_bytes),
        _bytes(variant.memory_bytes),
        UNKNOWN if variant.load_s is None else seconds(variant.load_s),
        outcome_words(variant),
    )


def untouched_cells(result: Compression) -> tuple[str, ...]:
    untouched = result.untouched
    return (
        untouched.name,
        f"{result.evaluation.value:.4g}",
        "",
        *["1x"] * (len(result.batches) or 1),
        _bytes(untouched.disk_bytes),
        _bytes(untouched.memory_bytes),
        UNKNOWN if untouched.load_s is None else seconds(untouched.load_s),
        "",
    )


def _loss_cell(verdict: LossVerdict | None, limit: MaxLoss) -> str:
    if verdict is None:
        return ""
    if verdict.most_loss is None:
        return amount(verdict.loss, limit)
    return f"{amount(verdict.loss, limit)} (< {amount(verdict.most_loss, limit)})"


def _speed_cells(variant: VariantResult, count: int) -> list[str]:
    cells = []
    if variant.screened is not None and not variant.speeds:
        cells.append(f"{variant.screened.speedup:.2f}x in one start")
    for speed in variant.speeds:
        verdict = speed.verdict
        ratio = "" if verdict.speedup is None else f"{verdict.speedup:.2f}x "
        cells.append(f"{ratio}{'slower' if verdict.verdict == 'worse' else verdict.verdict}")
    return [*cells, *[""] * (count - len(cells))]


def _bytes(value: int | None) -> str:
    return UNKNOWN if value is None else num_bytes(value)


def outcome_words(variant: VariantResult) -> str:
    """Return what became of a variant, in a few words."""
    if variant.is_recommended:
        return "recommended"
    words = "" if variant.refusal is None else REFUSAL_WORDS[variant.refusal]
    if variant.dominated_by is not None:
        words += f"; dominated by {variant.dominated_by}"
    return words


def details(variant: VariantResult, result: Compression) -> list[str]:
    """Return what was changed, and the verdicts in full, a sentence each."""
    if variant.outcome != "measured" and not variant.search:
        return [f"{outcome_words(variant)}: {variant.reason}"]
    lines = []
    if variant.reason:
        lines.append(f"{outcome_words(variant)}: {variant.reason}")
    if variant.applied_by == "patch":
        of_all = "" if variant.num_modules is None else f" of {variant.num_modules}"
        sizes = ""
        if variant.weight_bytes is not None and result.untouched.weight_bytes is not None:
            before, after = num_bytes(result.untouched.weight_bytes), num_bytes(variant.weight_bytes)
            sizes = f"; weights {before} before, {after} after"
        lines.append(f"changed {len(variant.modules)}{of_all} modules with weights{sizes}")
    if variant.skipped:
        lines.append(f"not changed, because they cost the most: {', '.join(variant.skipped)}")
    if variant.search is not None:
        lines.append(f"search data: {loss_words(variant.search, result)}; {_METHOD_WORDS[variant.search.method]}")
    if variant.final is not None:
        lines.append(f"held-out data: {loss_words(variant.final, result)}; {_METHOD_WORDS[variant.final.method]}")
    if variant.screened is not None and not variant.speeds:
        lines.append(screened_words(variant.screened))
    return [*lines, *map(speed_words, variant.speeds), *variant.notes]
