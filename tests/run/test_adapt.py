"""A running job's loader gets more workers where ranks wait for batches, and its own back where that does not pay."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from tests.keep.beating import Clock, Rank
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from flatout.inside.liveness.adapted_loader import AdaptedLoader
from flatout.inside.liveness.beat import SLOTS, Beat
from flatout.inside.protocol import File
from flatout.keep.heartbeats import BLOCK_STEPS, HeartbeatReader, ranks_of
from flatout.keep.ledger import LedgerFile
from flatout.records.watch import Adaptation, LoaderSettings
from flatout.report.adaptation_text import adaptation_sentence
from flatout.run.adapt import LEAST_GAIN, LEAST_WAIT, MEASURED_BLOCKS, SETTLING_STEPS, LoaderAdapter, better_settings

MS = 10**6
ONE, TWO = LoaderSettings(num_workers=1, prefetch_factor=2), LoaderSettings(num_workers=2, prefetch_factor=2)


def ask(folder: Path, number: int, before: LoaderSettings, after: LoaderSettings) -> None:
    request = msgspec.to_builtins({"number": number, "before": before, "after": after})
    (folder / File.LOADER_REQUEST).write_text(json.dumps(request))


def loader(**settings: object) -> DataLoader[object]:
    arguments = {"batch_size": 2, "shuffle": True, "num_workers": 1, **settings}
    return DataLoader(TensorDataset(torch.arange(8)), **arguments)  # type: ignore[arg-type]


def settings_of(beat: Beat) -> tuple[int, ...]:
    return tuple(beat.slots[SLOTS["loader"] : SLOTS["loader"] + 3])


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_the_next_epoch_has_the_workers_that_were_asked_for_and_the_same_samples(tmp_path: Path) -> None:
    beat, adapted = Beat(tmp_path), AdaptedLoader(tmp_path)

    def epoch(data: DataLoader[object]) -> list[list[int]]:
        adapted.epoch_begins(data, beat)
        return [batch.tolist() for (batch,) in data]  # type: ignore[attr-defined, misc]

    torch.manual_seed(3)
    own = loader()
    without = [epoch(own), epoch(own)]
    assert (beat.get("loader"), own.num_workers) == (1, 1)
    torch.manual_seed(3)
    changed = loader()
    first = epoch(changed)
    ask(tmp_path, 1, ONE, TWO)
    assert [first, epoch(changed)] == without and changed.num_workers == 2
    assert beat.loader_request == 1 and settings_of(beat) == (2, 2, 1)
    made_anew, another = loader(), loader(prefetch_factor=7)
    epoch(made_anew), epoch(another)
    assert (made_anew.num_workers, another.num_workers) == (2, 1)
    ask(tmp_path, 2, TWO, ONE)
    epoch(changed), epoch(loader())
    assert changed.num_workers == 1 and settings_of(beat) == (1, 2, 2)


@pytest.mark.parametrize("settings", [{"num_workers": 0}, {"persistent_workers": True}])
def test_a_loader_that_cannot_change_keeps_its_own(settings: dict[str, object], tmp_path: Path) -> None:
    beat, adapted, own = Beat(tmp_path), AdaptedLoader(tmp_path), loader(**settings)
    ask(tmp_path, 1, ONE, TWO)
    before = own.num_workers
    adapted.epoch_begins(own, beat)
    adapted.epoch_begins(DataLoader(Numbers(), num_workers=1), beat)
    assert own.num_workers == before and settings_of(beat) == (0, 0, 0)


@pytest.mark.parametrize("text", ["{", "[]", '{"number": 1}', '{"number": 1, "before": 3, "after": 4}'])
def test_a_damaged_request_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / File.LOADER_REQUEST).write_text(text)
    own = loader()
    AdaptedLoader(tmp_path).epoch_begins(own, Beat(tmp_path))
    assert own.num_workers == 1


class Job:
    """Two ranks whose steps and waits a test chooses, and an adapter that looks at them."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, mode: str) -> None:
        self.folder = folder / "attempt-0"
        clock = Clock(time.monotonic_ns() - 3600 * 10**9)
        self.ranks = [Rank(self.folder, number, 2, clock, patch) for number in range(2)]
        for rank in self.ranks:
            rank.beat.loads_with(1, 2)
        self.reported: list[Adaptation] = []
        self.ledger = LedgerFile(folder / "ledger.jsonl")
        self.adapter = LoaderAdapter(mode, 2, say=self.reported.append, ledger=self.ledger)  # type: ignore[arg-type]
        self.reader = HeartbeatReader(self.folder)

    def run(self, num_steps: int, wait_ms: float) -> None:
        for number in range(num_steps):
            for rank in self.ranks:
                rank.spends("data", int(wait_ms * MS))
                rank.spends("compute", 100 * MS)
                rank.steps()
            if number % 10 == 9:
                self.adapter.look(ranks_of(self.reader.read()), self.folder)

    def begin_epoch(self) -> dict[str, int]:
        """Follow the request on all ranks, as they do when an epoch begins."""
        request = json.loads((self.folder / File.LOADER_REQUEST).read_text())
        for rank in self.ranks:
            rank.beat.loader_request = request["number"]
            rank.beat.loads_with(request["after"]["num_workers"], request["after"]["prefetch_factor"])
        return dict(request["after"])

    @property
    def outcomes(self) -> list[str]:
        return [each.outcome for each in self.reported]


ENOUGH = MEASURED_BLOCKS * BLOCK_STEPS + 20


def test_a_dry_run_says_what_it_would_do_once_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, monkeypatch, "dry-run")
    files = sorted(path.name for path in job.folder.iterdir())
    job.run(3 * ENOUGH, wait_ms=100)
    assert job.outcomes == ["would_change"] and sorted(path.name for path in job.folder.iterdir()) == files
    (said,) = job.reported
    assert (said.before, said.after) == (ONE, TWO)
    assert (said.wait_share, said.expected_gain) == pytest.approx((0.5, 0.25))
    assert adaptation_sentence(said) == (
        "dry run: the loader would go from 1 worker with 2 batches ahead to 2 workers with 2 batches ahead at the next "
        "epoch: ranks wait 50 % of the step for batches; at most 25 % of the step is gained"
    )


@pytest.mark.parametrize(("share", "is_found"), [(LEAST_WAIT * 0.9, False), (LEAST_WAIT * 1.15, True)])
def test_a_short_wait_is_left_alone(
    share: float, is_found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, monkeypatch, "dry-run")
    job.run(ENOUGH, wait_ms=100 * share / (1 - share))
    assert bool(job.reported) is is_found


@pytest.mark.parametrize(("gain", "outcome"), [(LEAST_GAIN + 0.01, "kept"), (LEAST_GAIN - 0.01, "undone")])
def test_an_action_is_kept_if_it_pays_and_undone_if_not(
    gain: float, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, monkeypatch, "on")
    job.run(ENOUGH, wait_ms=100)
    assert job.outcomes == ["changed"]
    job.run(ENOUGH, wait_ms=100)
    assert job.outcomes == ["changed"], "no epoch has begun"
    assert job.begin_epoch()["num_workers"] == 2
    job.run(SETTLING_STEPS, wait_ms=500)
    job.run(ENOUGH, wait_ms=100 - 200 * gain)
    assert job.outcomes[:2] == ["changed", outcome]
    assert job.reported[1].measured_gain == pytest.approx(gain, abs=0.002)
    events = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [event["outcome"] for event in events if event["event"] == "adaptation"][:2] == ["changed", outcome]
    if outcome == "undone":
        assert job.begin_epoch()["num_workers"] == 1
        job.run(3 * ENOUGH, wait_ms=300)
        assert job.outcomes == ["changed", "undone"], "nothing follows an action that did not pay"
        assert "goes back to 1 worker" in adaptation_sentence(job.reported[1])


def test_workers_grow_to_the_cores_then_batches_ahead_do() -> None:
    assert better_settings(ONE, 8) == TWO
    assert better_settings(LoaderSettings(num_workers=6, prefetch_factor=2), 8) == LoaderSettings(
        num_workers=8, prefetch_factor=2
    )
    full = LoaderSettings(num_workers=8, prefetch_factor=2)
    assert better_settings(full, 8) == LoaderSettings(num_workers=8, prefetch_factor=4)
    assert better_settings(LoaderSettings(num_workers=8, prefetch_factor=8), 8) is None
