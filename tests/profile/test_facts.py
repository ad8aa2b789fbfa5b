"""Facts of a job, read from a recording's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.profile.runs import profiling, run, torchrun

from flatout.profile.read_facts import launcher, read_facts
from flatout.records.change import JobFacts

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
    ],
)
def test_the_launcher_is_known_by_its_word_before_the_script(command: str, expected: str | None) -> None:
    assert launcher(command.split()) == expected


def test_facts_of_a_recorded_job(tmp_path: Path) -> None:
    out = tmp_path / "recording"
    done = run([*profiling(out, "--warmup", "12", "--steps", "1"), *torchrun("--steps", "140", "--passes", "2")])
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
