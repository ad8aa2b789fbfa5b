"""Facts of a job, read from a recording's folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from tests.profile.runs import profiling, run, torchrun

from flatout.errors import InputError
from flatout.profile.read_facts import launcher, read_facts
from flatout.profile.read_recording import read_recording
from flatout.records.change import JobFacts
from flatout.records.recording import HostUse

GOLDEN = Path(__file__).parent / "golden"

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --nproc-per-node 4 train.py", "torchrun"),
        ("/usr/bin/torchrun train.py srun", "torchrun"),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "torchrun"),
        ("accelerate launch train.py", "accelerate"),
        ("srun -N 2 python train.py", "srun"),
        ("python3.12 train.py torchrun", "python"),
        ("./train", None),
        ("torchrun", "torchrun"),
        ("", None),
    ],
)
def test_the_launcher_is_known_by_its_word_before_the_script(command: str, expected: str | None) -> None:
    assert launcher(command.split()) == expected


def test_facts_of_a_recorded_job(tmp_path: Path) -> None:
    out = tmp_path / "recording"
    done = run(
        [*profiling(out, "--warmup", "12", "--steps", "1"), *torchrun("--steps", 80, "--passes", 2, "--pause", 0.01)]
    )
    assert done.returncode == 0, done.stderr
    facts = read_facts(out)
    assert isinstance(facts, JobFacts)
    assert (facts.num_ranks, facts.num_hosts, facts.ranks_per_host, facts.launcher) == (2, 1, 2, "torchrun")
    assert (facts.optimizer, facts.passes_per_step, facts.backend) == ("AdamW", 2, "gloo")
    assert (facts.device, facts.threads_per_rank, facts.loader_workers) == ("cpu", 1, 0)
    assert facts.collects_automatically is True
    assert facts.environment["OMP_NUM_THREADS"] == "1"
    assert facts.transport is None
    other = json.loads((out / "facts-rank1.json").read_text())
    other["facts"]["optimizer"] = "SGD"
    (out / "facts-rank1.json").write_text(json.dumps(other))
    assert read_facts(out).optimizer is None  # ranks disagree


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "of_0_1", tmp_path / "recording"))


def _write_facts(recording: Path, of_first: object, of_second: object) -> None:
    for rank, content in enumerate((of_first, of_second)):
        (recording / f"facts-rank{rank}.json").write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["facts", "environment"])
@pytest.mark.parametrize("damaged", ["text", 7, [1], None])
def test_a_damaged_table_of_one_rank_is_as_if_it_were_missing(recording: Path, name: str, damaged: object) -> None:
    whole = {"facts": {"optimizer": "AdamW"}, "environment": {"OMP_NUM_THREADS": "1"}}
    _write_facts(recording, whole, whole | {name: damaged})
    with_damage = read_facts(recording)
    _write_facts(recording, whole, {key: value for key, value in whole.items() if key != name})
    assert with_damage == read_facts(recording)
    assert with_damage.optimizer == "AdamW"


@pytest.mark.parametrize("kind", ["empty", "a link to itself", "a missing file", "a folder", "a pipe"])
def test_facts_of_a_rank_that_are_no_file_are_left_out(recording: Path, kind: str) -> None:
    whole = {"facts": {"optimizer": "AdamW"}, "environment": {}}
    _write_facts(recording, whole, whole)
    path = recording / "facts-rank1.json"
    path.unlink()
    match kind:
        case "empty":
            path.touch()
        case "a link to itself":
            path.symlink_to(path)
        case "a missing file":
            path.symlink_to("missing")
        case "a folder":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
    assert read_facts(recording).optimizer == "AdamW"


@pytest.mark.parametrize("damaged", ["much", [1], {"a": 1}])
def test_a_share_that_is_no_number_is_refused_in_one_line(recording: Path, damaged: object) -> None:
    def facts_with(share: object) -> dict[str, object]:
        return {"facts": {"loader_cpu_share": share}}

    _write_facts(recording, facts_with(0.25), facts_with(0.5))
    assert read_facts(recording).loader_cpu_share == 0.5
    _write_facts(recording, facts_with(0.25), facts_with(damaged))
    with pytest.raises(InputError, match="cannot be read"):
        read_facts(recording)


@pytest.mark.parametrize(
    ("busy", "others", "expected"),
    [(1.9, 0.3, 1.6), (1.9, None, None), (None, 0.3, None), (2.2, 0.2, 2.0), (2.3, 0.2, None), (0.1, 0.2, None)],
)
def test_the_cores_that_the_job_keeps_busy_are_those_that_no_other_process_does(
    recording: Path, busy: float | None, others: float | None, expected: float | None
) -> None:
    """More than 2.2 of two cores were busy where the samples count cores that a quota does not allow."""
    read = read_recording(recording)
    host = HostUse(hostname="a", num_samples=9, cores_allowed=2.0, cores_busy=busy, cores_busy_by_others=others)
    facts = read_facts(recording, msgspec.structs.replace(read, hosts=(host,)))
    assert facts.cores_busy_by_job == (None if expected is None else pytest.approx(expected))


def test_ranks_know_the_workers_of_their_loader(recording: Path) -> None:
    _write_facts(recording, {"facts": {"loader_workers": 4}}, {"facts": "damaged"})
    by_rank = {rank.rank: rank.loader_workers for rank in read_recording(recording).ranks}
    assert by_rank == {0: 4} | {rank: None for rank in by_rank if rank}
