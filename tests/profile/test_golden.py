"""Recordings of public scripts, made as docs/how-to/record-public-scripts.md says: each is read to the same facts."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from flatout.profile import read_recording
from flatout.read import open_sources, read_trace
from flatout.records.recording import Recording

pytestmark = pytest.mark.usefixtures("warm")

GOLDEN = Path(__file__).with_name("golden")


def unpacked(name: str, folder: Path) -> Recording:
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return read_recording(folder / name)


def test_nanogpt_on_the_cpu(tmp_path: Path) -> None:
    recording = unpacked("nanogpt_cpu", tmp_path)
    (rank,) = recording.ranks
    assert (rank.rank, rank.world_size, rank.steps_from, rank.ended_by) == (0, 1, "optimizer", "exit")
    assert len(rank.steps.number) == 61  # iterations 0 to 60
    assert set(rank.steps.num_backward[1:]) == {2}
    assert rank.steps.loss[20] == pytest.approx(5.56, abs=0.02)
    assert len(rank.traced_steps) == 1
    measured = recording.measured
    # 6 x parameters x tokens and the attention's products (PaLM, appendix B), without the embeddings.
    tokens, layers, width, length, vocabulary = 2 * 8 * 64, 2, 64, 64, 256
    parameters = 12 * layers * width**2 + vocabulary * width
    assert measured.flops_per_step == pytest.approx(tokens * (6 * parameters + 12 * layers * width * length), rel=0.1)
    assert measured.samples_per_s is None
    assert measured.reasons["samples_per_s"].startswith("no batch of a torch DataLoader")
    assert recording.problems == ()


def test_a_trainer_under_torchrun(tmp_path: Path) -> None:
    recording = unpacked("trainer_cpu", tmp_path)
    assert [rank.rank for rank in recording.ranks] == [0, 1]
    first, second = recording.ranks
    assert first.traced_steps == second.traced_steps
    assert {len(rank.steps.number) for rank in recording.ranks} == {60}
    for rank in recording.ranks:
        assert set(rank.steps.num_backward[1:]) == {2}
        assert set(rank.steps.num_samples[1:]) == {8.0}  # two batches of four, fetched before the first pass
        assert rank.steps.loss[59] == pytest.approx(6.05, abs=0.05)
    assert recording.problems == ()
    assert recording.hosts[0].num_samples > 0
    assert recording.runs[0].command[:2] == ("torchrun", "--standalone")


@pytest.mark.parametrize("name", ["nanogpt_cpu", "trainer_cpu"])
def test_its_traces_are_read(tmp_path: Path, name: str) -> None:
    recording = unpacked(name, tmp_path)
    with open_sources([Path(recording.path)]) as sources:
        assert [source.rank_hint for source in sources] == [rank.rank for rank in recording.ranks]
        for source, rank in zip(sources, recording.ranks, strict=True):
            table = read_trace(source)
            assert f"ProfilerStep#{rank.traced_steps[0]}" in table.names
            assert table.quality == ()
