"""Write a loader's profile as one self-contained HTML page: no script, no external reference.

In: a `LoadingProfile` and the command line. Out: a string. Texts from the job are untrusted: the template escapes them,
and a content policy in the page forbids scripts and external references.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout import __version__
from flatout.records.loading import FoundCause, LoadingProfile, RankLoading, SampleStage
from flatout.report.command import command_line
from flatout.report.loading_phrases import cause_sentence, sample_sentence, way_out, workers_sentence
from flatout.report.loading_text import (
    MIN_SHARE,
    SMALLEST_READ_BYTES,
    bytes_sentence,
    dataset_name,
    headline,
    headroom,
    rate_text,
    shown_rank,
)
from flatout.report.storage_phrases import storage_sentence
from flatout.report.template import rendered
from flatout.units import number, percent, seconds


def loading_html(profile: LoadingProfile, command: Sequence[str]) -> str:
    """Return the page of the rank that waits longest: why it waits, its rates, its stages, other numbers of workers."""
    loading = shown_rank(profile)
    nothing = "No process of this job made a batch with a torch DataLoader."
    content = {
        "tool_version": __version__,
        "command": command_line(command),
        "headline": nothing if loading is None else headline(profile, loading),
        "facts": [profile.recording] if loading is None else [profile.recording, f"rank {loading.rank}"],
        "causes": [] if loading is None else [_cause(cause, loading) for cause in profile.causes],
        "workers": "" if loading is None or not profile.causes else workers_sentence(profile.causes[0], loading),
        "loader": None if loading is None else _loader(loading),
        "problems": profile.problems,
    }
    return rendered("loading.html.j2", content)


def _cause(cause: FoundCause, loading: RankLoading) -> dict[str, str]:
    return {
        "name": cause.name.value,
        "sentence": cause_sentence(cause),
        "storage": "" if cause.storage is None else storage_sentence(cause.storage),
        "way_out": way_out(cause, loading),
    }


def _loader(loading: RankLoading) -> dict[str, object]:
    notes = [f"{loading.num_timed:,} of {loading.num_batches:,} batches were timed"]
    if (loading.read_bytes or 0.0) >= SMALLEST_READ_BYTES:
        notes.append(bytes_sentence(loading))
    return {
        "sentence": f"{dataset_name(loading)}: {sample_sentence(loading)}",
        "rates": [{"name": rate.name.value, "value": rate_text(rate), "origin": rate.origin} for rate in loading.rates],
        "stages": [_stage(loading, stage) for stage in loading.stages if stage.share >= MIN_SHARE],
        "notes": notes,
        "places": [{"share": percent(place.share), "place": place.place} for place in loading.places],
        "speeds": [
            {
                "workers": f"{speed.num_workers:,}",
                "is_present": speed.num_workers == loading.num_workers,
                "loader": number(round(speed.samples_per_s)),
                "training": number(round(speed.training_samples_per_s)),
                "limit": speed.limit,
            }
            for speed in loading.speeds
        ],
    }


def _stage(loading: RankLoading, stage: SampleStage) -> dict[str, str]:
    return {
        "name": stage.name,
        "wall": seconds(stage.wall_s),
        "share": percent(stage.share),
        "width": f"{100 * min(max(stage.share, 0.0), 1.0):.1f}",
        "cpu": seconds(stage.cpu_s),
        "waiting": seconds(stage.waiting_s),
        "queued": seconds(stage.queued_s),
        "headroom": headroom(loading, stage),
    }
