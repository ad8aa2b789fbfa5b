"""Where torchrun's agents meet in a job of Slurm: the user's own place is kept or refused, and never exchanged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flatout.cli import main

PINNED = "--sbatch-options=--nodelist=n1,n2"
AGENT = ["torchrun", "--nproc-per-node=8"]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    for name in ("PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND", "PET_MASTER_ADDR", "PET_NNODES"):
        monkeypatch.delenv(name, raising=False)

    def made(*options: str, command: list[str], code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["flatout", "submit", "--dry-run", "--to", "slurm", *options, "--", *command])
        ended = main()
        out, err = capfd.readouterr()
        assert ended == code, err
        return " ".join(out.replace("\\\n", " ").split()) if not code else err

    return made


@pytest.mark.parametrize(
    ("options", "words", "kept"),
    [
        (
            ["--nodes=2"],
            ["--rdzv-backend=etcd-v2", "--rdzv-endpoint=etcd:2379", "--rdzv-id=mine"],
            "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=etcd-v2 --rdzv-endpoint=etcd:2379 --rdzv-id=mine",
        ),
        (
            ["--nodes=2", PINNED],
            ["--nnodes=1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "n1:29500"],
            "srun torchrun --nproc-per-node=8 --nnodes=1:2 --rdzv_backend c10d --rdzv_endpoint n1:29500 t.py",
        ),
        (
            ["--nodes=2"],
            ["--rdzv-id=mine"],
            'srun torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint="$head_node:$rdzv_port"',
        ),
        (
            ["--nodes=1"],
            ["--rdzv-endpoint=localhost:0"],
            "srun torchrun --nproc-per-node=8 --rdzv-endpoint=localhost:0 t.py",
        ),
    ],
)
def test_a_place_that_is_there_whichever_nodes_it_gets_is_kept(
    script: Callable[..., str], options: list[str], words: list[str], kept: str
) -> None:
    said = script(*options, command=[*AGENT, *words, "t.py"])
    assert kept in said
    assert ("head_node=$(" in said) is ("$head_node" in kept)


@pytest.mark.parametrize(
    ("options", "words", "named"),
    [
        ([], ["--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500"], "--rdzv-endpoint n1:29500"),
        ([], ["--rdzv-endpoint", "n1:29500"], "--rdzv-endpoint n1:29500"),
        ([PINNED], ["--master-addr=n1", "--node-rank=0"], "--master-addr n1"),  # a rank for each node
    ],
)
def test_a_node_that_slurm_has_not_chosen_is_refused_in_one_line(
    script: Callable[..., str], options: list[str], words: list[str], named: str
) -> None:
    said = script("--nodes=2", *options, command=[*AGENT, *words, "t.py"], code=2)
    error, hint = said.splitlines()
    assert error == f"error: torchrun's rendezvous is `{named}`, but Slurm has not chosen the nodes yet"
    assert hint.startswith("hint: omit it, and the agents meet on the job's first node")


def test_torchruns_variables_are_the_users_own_too(script: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "n1:29500")
    said = script("--nodes=2", command=[*AGENT, "t.py"], code=2)
    assert "rendezvous is `PET_RDZV_ENDPOINT=n1:29500`" in said
    monkeypatch.setenv("PET_RDZV_BACKEND", "etcd")
    said = script("--nodes=2", command=[*AGENT, "t.py"])
    assert "srun torchrun --nnodes=2 --nproc-per-node=8 t.py" in said and "head_node" not in said
