"""The text of a loader's profile: what is known is shown, what is unknown is said to be unknown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.loading.test_speed import a_loader, a_stage

from flatout.loading.causes import find_causes
from flatout.loading.speed import loader_speeds
from flatout.records.loading import CodePlace, LoaderFinding, LoadingProfile, RankLoading
from flatout.report.loading_phrases import _MEANING, _WAY_OUT, way_out
from flatout.report.loading_text import loading_text
from flatout.report.terminal import TextStyle


def text(loading: RankLoading | None, **changed: Any) -> str:
    ranks = ()
    content: dict[str, Any] = {"recording": "out", "slowest_rank": None, "is_waiting": None}
    if loading is not None:
        loading = msgspec.structs.replace(loading, speeds=loader_speeds(loading))
        ranks = (loading,)
        causes = find_causes(loading)
        content |= {"slowest_rank": loading.rank, "is_waiting": bool(causes), "causes": causes}
    return loading_text(LoadingProfile(**content | {"ranks": ranks} | changed), TextStyle())


def test_the_cause_its_way_out_and_the_best_workers_come_first() -> None:
    lines = text(a_loader()).splitlines()
    assert lines[0] == "The training waits for its batches: 32.0 ms of each step of 42.0 ms (76 %)."
    assert lines[1].startswith("decode-bound: decoding takes most of the time to make a sample (decode: 100 %).")
    assert lines[2].startswith("  Way out: ")
    assert "  4 workers instead of no workers: predicted 4.20x." in lines
    assert "0 (now)" in text(a_loader()) and "800 samples/s" in text(a_loader())


def test_more_workers_of_an_iterable_data_set_repeat_its_samples() -> None:
    iterable = msgspec.structs.replace(a_loader(), is_iterable=True)
    assert "so they repeat" not in " ".join(text(a_loader()).split())
    assert "so they repeat" in " ".join(text(iterable).split("4 workers instead of")[1].split())
    storage = msgspec.structs.replace(find_causes(a_loader())[0], name=LoaderFinding.STORAGE)
    assert "so they repeat" in way_out(storage, msgspec.structs.replace(a_loader(), is_iterable=True))
    assert "so they repeat" not in way_out(storage, a_loader())


def test_no_line_is_wider_than_the_terminal() -> None:
    place = CodePlace(place="augment (train.py:12)", share=1.0)
    stages = [a_stage("code", cpu_s=0.003), a_stage("transform RandomResizedCropAndSomethingVeryLong", cpu_s=0.001)]
    shown = text(a_loader(*stages, num_workers=4, sending_s=0.001, receiving_s=0.001, copying_s=25e-6, places=(place,)))
    assert max(map(len, shown.splitlines())) <= 80
    assert "100 %  augment (train.py:12)" in shown
    assert "copying to the GPU, on its stream: 25.0 us." in shown.replace("\n", " ")


def test_batches_that_arrive_in_time_have_no_cause() -> None:
    shown = text(a_loader(step_s=0.04, loader_wait_s=0.001))
    assert shown.startswith("The batches arrive in time: the training waits 1.00 ms of each step of 40.0 ms (2.5 %).")
    assert "Way out" not in shown


def test_without_steps_the_wait_is_unknown() -> None:
    shown = text(a_loader(step_s=None, loader_wait_s=None))
    assert shown.startswith("No step was measured after the warm-up: whether the training waits")
    assert "Predicted" not in shown


def test_without_a_loader_nothing_is_invented() -> None:
    shown = text(None, problems=("stages-node-7.json is damaged: cut",))
    assert shown.splitlines() == [
        "No process of this job made a batch with a torch DataLoader.",
        "Note: stages-node-7.json is damaged: cut.",
    ]


@pytest.mark.parametrize("finding", list(LoaderFinding))
def test_each_cause_is_worded(finding: LoaderFinding) -> None:
    assert finding in _MEANING and finding in _WAY_OUT


@pytest.mark.parametrize(("read_bytes", "is_shown"), [(64.0, True), (63.0, False), (None, False)])
def test_a_few_bytes_are_not_called_the_samples(read_bytes: float | None, is_shown: bool) -> None:
    assert ("Each sample reads" in text(a_loader(read_bytes=read_bytes, device_bytes=0.0))) == is_shown
