"""Where torchrun's agents meet in a JobSet: a place that the pods can find is kept, and another one refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from flatout.cli import main

AGENT = ["torchrun", "--nproc-per-node=8"]
RANK = "--node-rank=$(JOB_COMPLETION_INDEX)"
KEYS = ("apiVersion", "kind", "metadata", "spec")
POD = "mine-workers-0-0.mine"  # as JobSet names the first pod of the replicated job: jobset.sigs.k8s.io, "network"


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    for name in ("ENDPOINT", "BACKEND", "ID"):
        monkeypatch.delenv(f"PET_RDZV_{name}", raising=False)
    monkeypatch.delenv("PET_MASTER_ADDR", raising=False)

    def made(*words: str, nodes: int = 2, code: int = 0) -> str:
        arguments = ["--dry-run", "--to", "kubernetes", "--name=mine", f"--nodes={nodes}", "--gpus=16"]
        monkeypatch.setattr(sys, "argv", ["flatout", "submit", *arguments, "--", *AGENT, *words, "t.py"])
        ended = main()
        out, err = capfd.readouterr()
        assert ended == code, err
        return out if not code else err

    return made


def command(printed: str) -> list[str]:
    """Return the container's command, as Kubernetes would read it."""
    lines = printed[printed.index("apiVersion") :].splitlines()
    found = yaml.safe_load(
        "\n".join(line for line in lines if line.startswith((" ", "-")) or line.partition(":")[0] in KEYS)
    )
    (container,) = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    return [str(word) for word in container["command"]]


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (
            ["--rdzv-backend=etcd-v2", "--rdzv-endpoint=10.0.0.7:2379", "--rdzv-id=job7"],
            ["--rdzv-backend=etcd-v2", "--rdzv-endpoint=10.0.0.7:2379", "--rdzv-id=job7"],
        ),
        (
            ["--rdzv-backend=c10d", "--rdzv-endpoint=meet.team.svc.cluster.local:29400"],
            ["--rdzv-backend=c10d", "--rdzv-endpoint=meet.team.svc.cluster.local:29400"],
        ),
        (["--rdzv_backend=c10d", f"--rdzv_endpoint={POD}:29400"], [f"--rdzv_endpoint={POD}:29400"]),
        (["--master-addr=meet.team.svc", "--master-port=7000"], ["--master-addr=meet.team.svc", RANK]),
        (["--master-addr", "meet.team.svc", "--node-rank=0"], ["meet.team.svc", RANK]),
    ],
)
def test_a_place_that_the_pods_can_find_is_kept(submit: Callable[..., str], words: list[str], kept: list[str]) -> None:
    found = command(submit(*words))
    assert set(kept) <= set(found) and "--nnodes=2" in found
    assert (RANK in found) is (RANK in kept), "agents that find out their ranks themselves are given none"
    places = [word for word in found if "rdzv-endpoint" in word.replace("_", "-") or "master-addr" in word]
    assert len(places) == 1 and found.count("--node-rank=0") == 0


def test_without_one_they_meet_in_the_first_pod(submit: Callable[..., str]) -> None:
    assert {"--nnodes=2", RANK, f"--master-addr={POD}", "--master-port=29500"} <= set(command(submit()))
    assert not {"--nnodes=1", f"--master-addr={POD}"} & set(command(submit("--rdzv-endpoint=localhost:0", nodes=1)))


@pytest.mark.parametrize(
    ("words", "named", "why"),
    [
        (
            ["--rdzv-backend=c10d", "--rdzv-endpoint=node1:29500"],
            "--rdzv-endpoint node1:29500",
            "not the name of",
        ),
        (["--rdzv-endpoint", "10.0.0.7:29500"], "--rdzv-endpoint 10.0.0.7:29500", "not the name of"),
        (["--master-addr=node1", "--node-rank=0"], "--master-addr node1", "not the name of"),
        (["--rdzv-endpoint=localhost:29500"], "--rdzv-endpoint localhost:29500", "each pod itself"),
        (["--rdzv-backend=etcd", "--rdzv-endpoint=[::1]:2379"], "--rdzv-endpoint [::1]:2379", "each pod itself"),
        (
            ["--rdzv-backend=c10d", "--rdzv-endpoint=other-workers-0-0.other:1"],
            "--rdzv-endpoint other-workers-0-0.other:1",
            "not the name of",
        ),
    ],
)
def test_a_place_that_no_pod_would_find_is_refused_in_one_line(
    submit: Callable[..., str], words: list[str], named: str, why: str
) -> None:
    error, hint = submit(*words, code=2).splitlines()
    assert error.startswith(f"error: torchrun's rendezvous is `{named}") and f"which is {why}" in error
    assert hint.startswith("hint: omit it, and the agents meet in the job's first pod")


def test_variables_that_no_pod_has_become_arguments(
    submit: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("BACKEND", "etcd-v2"), ("ENDPOINT", "etcd.team.svc:2379"), ("ID", "job7")):
        monkeypatch.setenv(f"PET_RDZV_{name}", value)
    found = command(submit())
    assert {"--rdzv-backend=etcd-v2", "--rdzv-endpoint=etcd.team.svc:2379", "--rdzv-id=job7"} <= set(found)
    monkeypatch.setenv("PET_RDZV_BACKEND", "c10d")
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "node1:1")
    assert "torchrun's rendezvous is `PET_RDZV_ENDPOINT=node1:1`" in submit(code=2)


def test_that_a_service_must_lead_to_the_first_pod_is_said(
    submit: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    said = submit("--rdzv-backend=c10d", "--rdzv-endpoint=meet.team.svc:1")
    assert "the service must lead to the first pod" in said
    assert "be headless" in said
    named = submit("--rdzv-backend=c10d", f"--rdzv-endpoint={POD}:29400")
    assert "only if it can resolve its own name when it" in " ".join(named.split())
    assert "resolve its own name" not in submit()
    assert "must lead" not in submit("--rdzv-backend=etcd", "--rdzv-endpoint=etcd.team.svc:1")
