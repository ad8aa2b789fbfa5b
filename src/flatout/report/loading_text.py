"""Print the stages of a job's samples on a terminal: why it waits, the stages, the places, the predicted speeds.

In: a `LoadingProfile` and a style. Out: the text.
"""

from __future__ import annotations

import msgspec

from flatout.records.loading import LoadingProfile, LoadingRate, RankLoading, RateName, SampleStage
from flatout.report.loading_phrases import cause_sentence, sample_sentence, way_out, workers_sentence
from flatout.report.storage_phrases import numbers_sentence, storage_sentence
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import num_bytes, number, percent, seconds

_BAR = 7
_INDENT = "  "
SMALLEST_READ_BYTES = 64  # per sample: less is Python's own reading, e.g. of a module
MIN_SHARE = 0.001  # of the time to make a sample: smaller stages are not shown


def loading_text(profile: LoadingProfile, style: TextStyle) -> str:
    """Return the profile of the slowest rank, and the problems of the recording."""
    loading = shown_rank(profile)
    if loading is None:
        lines = style.wrapped("No process of this job made a batch with a torch DataLoader.")
        return "\n".join([*lines, *_problems(profile, style)])
    lines = [style.bold(headline(profile, loading))]
    for cause in profile.causes:
        lines += style.wrapped(f"{cause.name.value}: {cause_sentence(cause)}.")
        if cause.storage is not None:
            lines += _indented(f"{storage_sentence(cause.storage)}.", style)
        lines += _indented(f"Way out: {way_out(cause, loading)}.", style)
    if profile.causes:
        lines += _indented(f"{workers_sentence(profile.causes[0], loading)}.", style)
    lines += _rates(loading, style)
    lines += ["", *style.wrapped(f"Rank {loading.rank}, {dataset_name(loading)}: {sample_sentence(loading)}."), ""]
    lines += _stages(profile, loading, style)
    lines += _places(loading, style)
    lines += _speeds(loading, style)
    lines += _problems(profile, style)
    return "\n".join(lines)


def _indented(sentence: str, style: TextStyle) -> list[str]:
    narrower = msgspec.structs.replace(style, width=style.width - len(_INDENT))
    return [_INDENT + line for line in narrower.wrapped(sentence[0].upper() + sentence[1:])]


def shown_rank(profile: LoadingProfile) -> RankLoading | None:
    """Return the rank that waits longest; without steps the one whose samples take longest."""
    for loading in profile.ranks:
        if loading.rank == profile.slowest_rank:
            return loading
    return max(profile.ranks, key=lambda loading: loading.sample_s, default=None)


def headline(profile: LoadingProfile, loading: RankLoading) -> str:
    if loading.step_s is None or loading.loader_wait_s is None:
        return "No step was measured after the warm-up: whether the training waits for its batches is unknown."
    share = percent(loading.loader_wait_s / loading.step_s)
    wait = f"{seconds(loading.loader_wait_s)} of each step of {seconds(loading.step_s)} ({share})"
    if profile.is_waiting:
        return f"The training waits for its batches: {wait}."
    return f"The batches arrive in time: the training waits {wait}."


def dataset_name(loading: RankLoading) -> str:
    return f"data set {loading.dataset}" if loading.dataset else "an unknown data set"


def _rates(loading: RankLoading, style: TextStyle) -> list[str]:
    rows = [(rate.name.value, rate_text(rate), rate.origin) for rate in loading.rates]
    return ["", *text_table(("rates of this rank", "", ""), rows, style=style, flexible=(0,))] if rows else []


def rate_text(rate: LoadingRate) -> str:
    return "" if rate.samples_per_s is None else f"{number(round(rate.samples_per_s))} samples/s"


def _stages(profile: LoadingProfile, loading: RankLoading, style: TextStyle) -> list[str]:
    header = ("stage", "per sample", "share", "", "computing", "waiting", "no core", "headroom")
    rows = [_row(loading, stage, style) for stage in loading.stages if stage.share >= MIN_SHARE]
    lines = text_table(header, rows, style=style, flexible=(0,))
    aside = [
        ("sending, in a second thread of the worker", loading.sending_s),
        ("CPU time of the worker's other threads", loading.other_threads_s),
        ("receiving, in the training process", loading.receiving_s),
        ("pinning, in a second thread of the training process", loading.pinning_s),
        ("copying to the GPU, on its stream", loading.copying_s),
    ]
    known = [f"{name}: {seconds(value_s)}" for name, value_s in aside if value_s is not None]
    if known:
        lines += style.wrapped(f"At the same time, per sample: {'; '.join(known)}.")
    if (loading.read_bytes or 0.0) >= SMALLEST_READ_BYTES:
        lines += style.wrapped(f"{bytes_sentence(loading)}.")
    for verdict in profile.storage:
        counted = numbers_sentence(verdict)
        if counted is not None and verdict.hostname == loading.hostname:
            lines += style.wrapped(f"Storage: {counted}.")
    if loading.busy_share is not None:
        lines += style.wrapped(f"The workers make batches in {percent(loading.busy_share)} of their time.")
    timed = f"{loading.num_timed:,} of {loading.num_batches:,} batches were timed"
    return [*lines, *style.wrapped(f"{timed}, which took {percent(loading.watch_share)} of the time.")]


def _row(loading: RankLoading, stage: SampleStage, style: TextStyle) -> tuple[str, ...]:
    return (
        stage.name,
        seconds(stage.wall_s),
        percent(stage.share),
        style.bar(stage.share, _BAR),
        seconds(stage.cpu_s),
        seconds(stage.waiting_s),
        seconds(stage.queued_s),
        headroom(loading, stage),
    )


def headroom(loading: RankLoading, stage: SampleStage) -> str:
    """Return how many times as fast as the training, with its batches ready, this stage would be alone."""
    needed = next((rate.samples_per_s for rate in loading.rates if rate.name == RateName.BATCHES_READY), None)
    if not needed or stage.wall_s <= 0:
        return ""
    return f"{max(loading.num_workers, 1) / stage.wall_s / needed:.2g}x"


def bytes_sentence(loading: RankLoading) -> str:
    assert loading.read_bytes is not None
    read = f"Each sample reads {num_bytes(loading.read_bytes)}"
    if not loading.device_bytes:
        return f"{read}, all of it from the page cache"
    return f"{read}; {percent(min(loading.device_bytes / loading.read_bytes, 1.0))} of it comes from a device"


def _places(loading: RankLoading, style: TextStyle) -> list[str]:
    code = next((stage for stage in loading.stages if stage.name == "code"), None)
    if code is None or not loading.places:
        return []
    lines = ["", *style.wrapped("Where the data set's own code spends its time:")]
    return lines + [f"  {percent(place.share):>5}  {style.clean(place.place)}" for place in loading.places]


def _speeds(loading: RankLoading, style: TextStyle) -> list[str]:
    if not loading.speeds:
        return []
    header = ("workers", "loader alone", "training", "the loader is limited by")
    rows = [
        (
            f"{speed.num_workers}{' (now)' if speed.num_workers == loading.num_workers else ''}",
            f"{number(round(speed.samples_per_s))} samples/s",
            f"{number(round(speed.training_samples_per_s))} samples/s",
            speed.limit,
        )
        for speed in loading.speeds
    ]
    return ["", *style.wrapped("Predicted for this rank:"), *text_table(header, rows, style=style, flexible=(3,))]


def _problems(profile: LoadingProfile, style: TextStyle) -> list[str]:
    return [line for problem in profile.problems for line in style.wrapped(f"Note: {problem}.")]
