"""The loaders of pytorch/examples' ImageNet script on two H200, recorded by `benchmarks/gpu_tune_jobs.sh`.

Each rank has two workers and epochs of 15 steps. Its workers are spawned, which takes 7 s per epoch, and so do those of
the evaluation. In between, every second step waits for two batches: the steps take 0.06 and 0.55 s in turn. Flatout
called this loader fast enough, because evaluations and starts made the mean step longer than a batch takes.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

from flatout.loading.profile import loading_profile
from flatout.loading.speed import best_workers
from flatout.profile import read_recording
from flatout.records.loading import LoadingProfile
from flatout.records.recording import Recording


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(Path(__file__).with_name("golden") / "imagenet_two_ranks.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return read_recording(folder / "imagenet_two_ranks")


@pytest.fixture(scope="module")
def profile(recording: Recording) -> LoadingProfile:
    return loading_profile(recording)


def test_each_rank_has_the_batches_of_its_own_workers(profile: LoadingProfile) -> None:
    assert [(loading.rank, loading.num_workers, loading.num_batches) for loading in profile.ranks] == [
        (0, 2, 77),
        (1, 2, 77),
    ]


def test_more_workers_are_predicted_to_help_by_what_the_regular_steps_wait(
    recording: Recording, profile: LoadingProfile
) -> None:
    assert profile.slowest_rank == 0 and profile.is_waiting
    best = best_workers(profile.ranks[0].speeds)
    assert best is not None and best.num_workers == 4
    (cause,) = profile.causes
    assert cause.workers == 4 and cause.gain is not None
    # By hand: an epoch without the waits of its regular steps.
    steps = recording.ranks[0].steps
    epoch = slice(15, 60)
    is_boundary = steps.duration_s[epoch] > 5
    waits_s = np.where(is_boundary, 0.0, steps.loader_s[epoch]).sum()
    epochs_s = steps.duration_s[epoch].sum()
    assert cause.gain == pytest.approx(epochs_s / (epochs_s - waits_s), abs=0.06)


def test_the_present_speed_is_predicted_as_it_was_measured(profile: LoadingProfile) -> None:
    loading = profile.ranks[0]
    assert loading.step_s is not None and loading.samples_per_step is not None
    (present,) = [speed for speed in loading.speeds if speed.num_workers == 2]
    assert present.training_samples_per_s == pytest.approx(loading.samples_per_step / loading.step_s, rel=0.05)
    assert present.limit == "workers"
