"""The stage objects of WebDataset, and of streams of Hugging Face datasets, are stages of the batch."""

from __future__ import annotations

import io
import random
import sys
import tarfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.inside.loader_stages.planted import SLOW_S, compute
from torch.utils.data import DataLoader, IterableDataset

from flatout.inside.loader_stages.batch_watch import hook_stages
from flatout.inside.loader_stages.streams import TimedIterator
from flatout.inside.protocol import File, LoaderStage
from flatout.loading.read_reports import read_reports

BATCH, NUM_SAMPLES = 4, 8


def stages_of(folder: Path, dataset: Any, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the batches, and the stages of the process that made them."""
    folder.mkdir()
    undo = hook_stages(folder)
    try:
        batches = list(DataLoader(dataset, num_workers=0, **options))
    finally:
        undo()
    ((_, report),), problems = read_reports(folder)
    assert not problems and len(list(folder.glob(File.STAGES.glob))) == 1
    total_s = sum(stage.wall_s for stage in report.stages.values())
    assert total_s == pytest.approx(report.timed_s, rel=0.05, abs=1e-3), (
        "the stages sum to the time in which batches are made"
    )
    return batches, report.stages


def slow(sample: dict[str, Any]) -> tuple[int]:
    compute(SLOW_S)
    return (int(sample["txt"]),)


@pytest.fixture
def shard(tmp_path: Path) -> str:
    path = tmp_path / "shard.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(NUM_SAMPLES):
            member = tarfile.TarInfo(f"{number:03}.txt")
            member.size = 1
            archive.addfile(member, io.BytesIO(str(number).encode()))
    return str(path)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_each_stage_of_a_webdataset_pipeline_is_one_by_its_name(shard: str, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")

    def pipeline() -> Any:
        data = webdataset.WebDataset(shard, shardshuffle=False).shuffle(2, rng=random.Random(1))
        return data.map(slow).batched(BATCH)

    plain = [numbers.tolist() for (numbers,) in pipeline()]
    batches, stages = stages_of(tmp_path / "recording", pipeline(), batch_size=None)
    assert [numbers.tolist() for (numbers,) in batches] == plain
    mine = stages[f"{LoaderStage.TRANSFORM}slow"]
    assert mine.cpu_s >= 0.9 * SLOW_S * NUM_SAMPLES
    assert {LoaderStage.READ, LoaderStage.COLLATE, f"{LoaderStage.TRANSFORM}shuffle"} <= stages.keys()


class _Examples:
    def __init__(self, source: Any) -> None:
        self.source = source


class ArrowExamplesIterable(_Examples):
    def __iter__(self) -> Iterator[int]:
        for number in self.source:
            compute(SLOW_S)
            yield number


class MappedExamplesIterable(_Examples):
    def __init__(self, source: Any, function: Any) -> None:
        super().__init__(source)
        self.function = function

    def __iter__(self) -> Iterator[int]:
        for number in self.source:
            yield self.function(number)


class TakeExamplesIterable(_Examples):
    def __iter__(self) -> Iterator[int]:
        yield from self.source


def half_as_slow(number: int) -> int:
    compute(SLOW_S / 2)
    return 10 * number


class Streamed(IterableDataset[int]):
    """A stream as Hugging Face datasets make it: its stages are made as it is iterated."""

    def __iter__(self) -> Iterator[int]:
        yield from TakeExamplesIterable(MappedExamplesIterable(ArrowExamplesIterable(range(NUM_SAMPLES)), half_as_slow))


def test_each_stage_of_a_stream_of_hugging_face_is_one_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "datasets.iterable_dataset"
    library = types.ModuleType(name)
    kinds = (ArrowExamplesIterable, MappedExamplesIterable, TakeExamplesIterable)
    originals = [kind.__iter__ for kind in kinds]
    for kind in kinds:
        monkeypatch.setattr(kind, "__module__", name)
        setattr(library, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, name, library)
    batches, stages = stages_of(tmp_path / "recording", Streamed(), batch_size=BATCH)
    assert torch.cat(batches).tolist() == [10 * number for number in range(NUM_SAMPLES)]
    reading, mapping = stages[LoaderStage.READ], stages[f"{LoaderStage.TRANSFORM}half_as_slow"]
    assert reading.cpu_s >= 0.9 * SLOW_S * NUM_SAMPLES
    assert 0.45 * SLOW_S * NUM_SAMPLES <= mapping.cpu_s < reading.cpu_s
    assert f"{LoaderStage.TRANSFORM}Take" in stages
    assert [kind.__iter__ for kind in kinds] == originals, "as before, once the hooks are removed"


class Batches(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.zeros(3, BATCH, 2)


def test_the_samples_of_batches_that_a_data_set_makes_itself_are_counted(tmp_path: Path) -> None:
    stages_of(tmp_path / "recording", Batches(), batch_size=None)
    ((_, report),), _ = read_reports(tmp_path / "recording")
    assert (report.num_batches, report.num_samples) == (3, 3 * BATCH)


def test_a_timed_iterator_is_closed_like_the_generator_within() -> None:
    closed = []

    def numbers() -> Iterator[int]:
        try:
            yield 1
        finally:
            closed.append(True)

    iterator = TimedIterator("read", numbers())
    assert next(iterator) == 1
    iterator.close()
    assert closed == [True]
