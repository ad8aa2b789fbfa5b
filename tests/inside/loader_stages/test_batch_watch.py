"""What the reports of the processes that make batches say of planted slow stages."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.inside.loader_stages.planted import (
    NUM_SAMPLES,
    SLOW_S,
    Files,
    Pipes,
    Sleeping,
    SlowCode,
    SlowToSend,
    compute,
    first,
    slow_collate,
)
from torch.utils.data import DataLoader, IterableDataset

from flatout.inside.loader_stages import batch_watch
from flatout.inside.loader_stages.batch_watch import hook_stages
from flatout.inside.loader_stages.thread_counters import ThreadCounters
from flatout.inside.protocol import File, LoaderStage
from flatout.loading.read_reports import read_reports
from flatout.loading.stages import rank_loading

BATCH = 8
UNDO: list[Callable[[], None]] = []


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "recording"
    folder.mkdir()
    UNDO[:] = [hook_stages(folder)]
    yield folder
    while UNDO:
        UNDO.pop()()


def reports(recording: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(recording.glob(File.STAGES.glob))]


def run(dataset: Any, *, num_workers: int, collate: Callable[[list[Any]], Any] | None = None) -> list[Any]:
    return list(DataLoader(dataset, batch_size=BATCH, num_workers=num_workers, collate_fn=collate))


def of_maker(recording: Path, num_workers: int) -> dict[str, Any]:
    """The report of the one process that made batches."""
    if num_workers == 0:
        UNDO.pop()()  # this process writes its report when the hooks are removed
    (report,) = [report for report in reports(recording) if report["num_batches"]]
    return report


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("kind", "collate", "stage"),
    [
        (SlowCode, None, LoaderStage.CODE),
        (Sleeping, None, LoaderStage.CODE),
        (Files, slow_collate, LoaderStage.COLLATE),
    ],
)
def test_a_slow_stage_is_the_largest(
    recording: Path, tmp_path: Path, kind: type[Files], collate: Any, stage: str, num_workers: int
) -> None:
    run(kind(tmp_path), num_workers=num_workers, collate=collate)
    report = of_maker(recording, num_workers)
    stages = report["stages"]
    slow = stages[stage]
    num_timed = BATCH * report["num_timed"]
    assert slow["wall_s"] >= SLOW_S * num_timed
    assert max(stages, key=lambda name: stages[name]["wall_s"]) == stage
    computes = kind is not Sleeping
    assert (slow["cpu_s"] >= 0.9 * SLOW_S * num_timed) == computes
    assert sum(spent["wall_s"] for spent in stages.values()) == pytest.approx(report["timed_s"], rel=0.05)


def test_the_stages_of_a_small_file_are_told_apart(recording: Path, tmp_path: Path) -> None:
    run(Files(tmp_path), num_workers=1)
    report = of_maker(recording, 1)
    num_timed = BATCH * report["num_timed"]
    calls = {name: spent["num_calls"] for name, spent in report["stages"].items()}
    assert calls[LoaderStage.OPEN] == calls[LoaderStage.DECODE] == num_timed
    assert calls[LoaderStage.READ] >= num_timed
    assert calls[LoaderStage.COLLATE] == report["num_timed"]
    assert report["num_samples"] == NUM_SAMPLES and report["num_batches"] == NUM_SAMPLES / BATCH


def test_waiting_for_a_file_is_the_stage_read(recording: Path, tmp_path: Path) -> None:
    run(Pipes(tmp_path), num_workers=1)
    report = of_maker(recording, 1)
    reading = report["stages"][LoaderStage.READ]
    assert reading["wall_s"] >= 0.8 * SLOW_S * BATCH * report["num_timed"]
    assert reading["cpu_s"] < reading["wall_s"] / 2


def test_sending_is_timed_in_the_thread_that_sends(recording: Path, tmp_path: Path) -> None:
    run(SlowToSend(tmp_path), num_workers=1, collate=first)
    report = of_maker(recording, 1)
    assert report["sent"]["cpu_s"] >= 2 * SLOW_S * NUM_SAMPLES
    assert report["sent"]["num_calls"] >= NUM_SAMPLES / BATCH


class _Decoder:
    def slow(self, data: bytes) -> bytes:
        compute(SLOW_S)
        return data


class _Flip:
    def __call__(self, value: Any) -> Any:
        return value


class _Crop:
    def __call__(self, value: Any) -> Any:
        compute(SLOW_S)
        return value


def _module(name: str, **content: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(content)
    return module


class _Compose:
    """Applies transforms in turn, as torchvision's does."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        for transform in self.transforms:
            value = transform(value)
        return value


class Transformed(Files):
    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        super().__init__(folder)
        self.transform = transform

    def change(self, value: torch.Tensor) -> Any:
        return self.transform(value)


def test_each_transform_of_a_chain_is_a_stage_by_its_name(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compose = type("Compose", (_Compose,), {"__call__": _Compose.__call__})
    name = "torchvision.transforms.transforms"
    monkeypatch.setitem(sys.modules, name, _module(name, Compose=compose))
    run(Transformed(tmp_path, compose([_Flip(), _Crop()])), num_workers=1)
    stages = of_maker(recording, 1)["stages"]
    crop, flip = (stages[LoaderStage.TRANSFORM + kind] for kind in ("_Crop", "_Flip"))
    assert crop["num_calls"] == flip["num_calls"]
    assert crop["cpu_s"] >= 0.9 * SLOW_S * crop["num_calls"] and flip["cpu_s"] < crop["cpu_s"] / 10


def test_a_decoder_is_a_stage_wherever_it_is_imported(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = _module("cv2", imdecode=lambda data: compute(SLOW_S) or data)
    monkeypatch.setitem(sys.modules, "cv2", decoder)
    run(Transformed(tmp_path, lambda value: sys.modules["cv2"].imdecode(value)), num_workers=1)
    report = of_maker(recording, 1)
    decoding = report["stages"][LoaderStage.DECODE]
    assert decoding["cpu_s"] >= 0.9 * SLOW_S * BATCH * report["num_timed"]


class VerySlowCode(Files):
    """So slow that its stack is sampled many times, whatever else the machine does."""

    def change(self, value: torch.Tensor) -> torch.Tensor:
        compute(5 * SLOW_S)
        return value


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(32):
            compute(SLOW_S)
            yield torch.tensor(float(number))


def test_bytes_are_those_of_the_samples_alone(recording: Path, tmp_path: Path) -> None:
    dataset = Files(tmp_path)
    run(dataset, num_workers=1)
    report = of_maker(recording, 1)
    sizes = [path.stat().st_size for path in dataset.paths]
    num_timed = BATCH * report["num_timed"]
    assert min(sizes) * num_timed <= report["read_bytes"] <= (max(sizes) + 1) * num_timed


@pytest.mark.parametrize(
    ("from_device", "kind"), [(0.9, "from_storage"), (0.89, None), (0.11, None), (0.09, "from_memory")]
)
def test_batches_are_told_apart_by_where_their_bytes_came_from(
    from_device: float, kind: str | None, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch reads 1,000 bytes, as counters have it; the first two looks at them see what looking itself reads."""
    num_looks = 0

    def counters() -> tuple[float, int, int, int]:
        nonlocal num_looks
        num_looks += 1
        bytes_read = 1000 * max(num_looks - 2, 0)
        return 0.0, bytes_read, int(from_device * bytes_read), 0

    monkeypatch.setattr(ThreadCounters, "read", lambda _: counters())
    run(Files(tmp_path), num_workers=0)
    report = of_maker(recording, 0)
    counted = {name: report[name]["num_samples"] for name in ("from_storage", "from_memory")}
    assert counted == {"from_storage": 0, "from_memory": 0} | ({kind: BATCH * report["num_timed"]} if kind else {})


def test_the_samples_of_a_stream_are_its_own_code(recording: Path) -> None:
    assert torch.cat(run(Stream(), num_workers=1)).tolist() == [float(number) for number in range(32)]
    report = of_maker(recording, 1)
    assert report["is_iterable"] and report["dataset"] == "Stream"
    assert report["stages"][LoaderStage.CODE]["cpu_s"] >= 0.9 * SLOW_S * BATCH * (report["num_timed"] - 1)


def test_the_place_in_the_script_is_named(recording: Path, tmp_path: Path) -> None:
    run(VerySlowCode(tmp_path), num_workers=1)
    places = of_maker(recording, 1)["places"]
    assert places
    most = max(places, key=lambda place: places[place])
    assert "planted.py:" in most and most.startswith("compute")


def test_batches_are_the_same_as_without_the_watch(tmp_path: Path) -> None:
    def batches() -> list[torch.Tensor]:
        torch.manual_seed(0)
        loader = DataLoader(Files(tmp_path), batch_size=BATCH, shuffle=True, num_workers=2)
        return list(loader)

    plain = batches()
    undo = hook_stages(tmp_path)
    watched = batches()
    undo()
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))


def test_everything_is_as_before_once_it_is_undone(tmp_path: Path) -> None:
    import builtins
    import io
    from multiprocessing import queues

    from torch.utils.data import _utils

    def hooked() -> list[Any]:
        pickler = queues._ForkingPickler  # type: ignore[attr-defined]
        kinds = (_utils.fetch._MapDatasetFetcher, _utils.fetch._IterableDatasetFetcher)
        functions = [kind.fetch for kind in kinds] + [_utils.fetch._BaseDatasetFetcher.__init__]
        return [*functions, builtins.open, io.open, json.loads, pickler.loads, _utils.pin_memory.pin_memory]

    before = hooked()
    hook_stages(tmp_path)()
    assert hooked() == before


def test_an_error_in_a_sample_is_the_jobs(recording: Path, tmp_path: Path) -> None:
    class Broken(Files):
        def change(self, value: torch.Tensor) -> torch.Tensor:
            raise ValueError("bad sample 7")

    with pytest.raises(ValueError, match="bad sample 7"):
        run(Broken(tmp_path), num_workers=0)


class Shards(IterableDataset[torch.Tensor]):
    """Shards of some samples each, which the workers take in turn."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.num_shards = len(sizes)

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for size in self.sizes[first::step]:
            yield from torch.zeros(size, 2)


@pytest.mark.parametrize(
    ("sizes", "num_idle", "spread"),
    [((40,), 1, None), ((64, 32), 0, 2.0), ((32, 32), 0, 1.0)],
)
def test_workers_without_shards_and_with_unequal_ones(
    sizes: tuple[int, ...], num_idle: int, spread: float | None, recording: Path
) -> None:
    run(Shards(*sizes), num_workers=2)
    read, problems = read_reports(recording)
    loading = rank_loading(0, "node", [report for _, report in read], None, ranks_on_host=1)
    assert loading is not None and problems == []
    assert (loading.num_shards, loading.num_idle_workers, loading.shard_spread) == (len(sizes), num_idle, spread)


def test_what_is_done_for_batches_that_are_not_timed_counts_too(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is counted, and the report is written once per second: that takes time as well."""
    monkeypatch.setattr(batch_watch.Budget, "allows", lambda self, elapsed_s: False)
    run(Files(tmp_path), num_workers=0)
    report = of_maker(recording, 0)
    assert report["num_timed"] == 0 and report["watch_s"] > 0
