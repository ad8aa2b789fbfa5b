"""Manifests for Kueue, JobSet and Trainer: what their API servers take, with the quotas that were asked for."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.schedule.live.kube_schemas import problems

from flatout.errors import InputError
from flatout.schedule.live.kueue import manifests
from flatout.schedule.live.teams import read_teams

TEAMS = """
[cluster]
name = "research"
topology = ["cloud.example.com/block", "cloud.example.com/rack"]

[priorities]
urgent = 1000
normal = 100

[[flavors]]
name = "h100"
nodes = 64
gpus_per_node = 8
cpus_per_node = 96
memory_gib_per_node = 1800
node_labels = { "nvidia.com/gpu.product" = "NVIDIA-H100-80GB-HBM3" }

[[teams]]
name = "vision"
gpus = { h100 = 256 }
borrow = { h100 = 128 }

[[teams]]
name = "language"
namespace = "llm"
gpus = { h100 = 192 }
lend = { h100 = 64 }
weight = 2

[[jobs]]
name = "pretrain"
team = "language"
kind = "trainjob"
nodes = 8
gpus_per_node = 8
priority = "normal"
within = "cloud.example.com/block"
command = ["torchrun", "train.py"]

[[jobs]]
name = "eval"
team = "vision"
nodes = 2
gpus_per_node = 4
priority = "urgent"
command = ["torchrun", "--nproc-per-node=4", "eval.py", "$(date)"]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "teams.toml").write_text(TEAMS)
    return tmp_path / "teams.toml"


def objects(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name."""
    found = [each for file in manifests(read_teams(path)) for each in yaml.safe_load_all(file.text)]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def test_every_object_is_one_that_its_api_takes(path: Path) -> None:
    made = objects(path)
    assert set(made) == {
        ("Topology", "research"),
        ("ResourceFlavor", "h100"),
        ("Cohort", "research"),
        *((kind, team) for kind in ("ClusterQueue", "LocalQueue") for team in ("vision", "language")),
        ("WorkloadPriorityClass", "urgent"),
        ("WorkloadPriorityClass", "normal"),
        ("ClusterTrainingRuntime", "flatout-torch-block"),
        ("TrainJob", "pretrain"),
        ("JobSet", "eval"),
    }
    assert {key: problems(each) for key, each in made.items() if problems(each)} == {}


def test_without_topology_priorities_and_jobs(path: Path) -> None:
    text = TEAMS.split("[[jobs]]")[0].split("[priorities]")
    path.write_text('[cluster]\nname = "c"\n[[flavors]]' + text[1].split("[[flavors]]")[1])
    made = objects(path)
    assert {kind for kind, _ in made} == {"ResourceFlavor", "Cohort", "ClusterQueue", "LocalQueue"}
    assert [problem for each in made.values() for problem in problems(each)] == []


def quotas(queue: dict[str, Any]) -> dict[str, list[str | None]]:
    (group,) = queue["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    return {
        each["name"]: [each.get(name) for name in ("nominalQuota", "borrowingLimit", "lendingLimit")]
        for each in flavor["resources"]
    }


def test_quotas_borrowing_and_what_is_left_for_all(path: Path) -> None:
    made = objects(path)
    gpu = "nvidia.com/gpu"
    assert quotas(made["ClusterQueue", "vision"])[gpu] == ["256", "128", None]
    assert quotas(made["ClusterQueue", "language"]) == {
        "cpu": ["2304", None, "768"],  # 192 of 512 GPUs have 192 / 8 * 96 CPUs
        "memory": ["43200Gi", None, "14400Gi"],
        gpu: ["192", None, "64"],
    }
    assert quotas(made["Cohort", "research"])[gpu] == ["64", None, None]
    assert made["ClusterQueue", "language"]["spec"]["fairSharing"] == {"weight": "2"}


def test_jobs_name_their_queue_priority_and_place(path: Path) -> None:
    made = objects(path)
    assert made["TrainJob", "pretrain"]["metadata"] == {
        "name": "pretrain",
        "namespace": "llm",
        "labels": {"kueue.x-k8s.io/queue-name": "language", "kueue.x-k8s.io/priority-class": "normal"},
    }
    runtime = made["ClusterTrainingRuntime", made["TrainJob", "pretrain"]["spec"]["runtimeRef"]["name"]]
    template = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    required = {"kueue.x-k8s.io/podset-required-topology": "cloud.example.com/block"}
    assert template["metadata"]["annotations"] == required
    pod = made["JobSet", "eval"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    preferred = {"kueue.x-k8s.io/podset-preferred-topology": "cloud.example.com/rack"}
    assert pod["metadata"]["annotations"] == preferred
    (container,) = pod["spec"]["containers"]
    assert container["command"] == [
        *("torchrun", "--nnodes=2", "--node-rank=$(JOB_COMPLETION_INDEX)"),
        *("--master-addr=eval-workers-0-0.eval", "--master-port=29500"),
        *("--nproc-per-node=4", "eval.py", "$$(date)"),
    ]
    assert container["resources"]["requests"] == {"cpu": "48", "memory": "900Gi", "nvidia.com/gpu": 4}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("h100 = 256", "h100 = 400", "quotas must be at most 64 \\* 8 = 512 GPUs, but are 592"),
        ("h100 = 256", "a100 = 256", "`a100 = 256` must be a flavor"),
        ("h100 = 256", 'h100 = "x"', "Expected `int`, got `str`"),
        ('name = "vision"', 'name = "Vision"', "must be lower-case"),
        ('name = "vision"', 'name = "language"', "two of the teams are named `language`"),
        ('team = "vision"', 'team = "x"', "there is no team `x`"),
        ('priority = "urgent"', 'priority = "x"', "there is no priority `x`"),
        ('within = "cloud.example.com/block"', 'within = "x"', "must be a level of the topology"),
        ("gpus_per_node = 4", "gpus_per_node = 16", "no node has 16 GPUs"),
        ("gpus_per_node = 4", "gpus = 4", "unknown field `gpus`"),
        ("[cluster]", "[cluster", "Expected ']'"),
        ('"cloud.example.com/rack"]', '"kubernetes.io/hostname"]', "narrowest level in any case"),
        ("node_labels =", "#", "node_labels must name its nodes"),
        ("weight = 2", "weight = 0", "must be more than 0"),
        ("weight = 2", "weight = nan", "must be more than 0"),
    ],
)
def test_a_broken_rule_is_refused_in_one_line(path: Path, old: str, new: str, why: str) -> None:
    assert old in TEAMS
    path.write_text(TEAMS.replace(old, new, 1))
    with pytest.raises(InputError, match=why) as error:
        read_teams(path)
    assert "\n" not in str(error.value)


def test_the_schemas_refuse_what_is_wrong(path: Path) -> None:
    """The check is not empty: each of these is refused."""
    made = objects(path)
    for key, change in (
        (("ClusterQueue", "vision"), lambda spec: spec.update(cohort="research")),  # v1beta1's name
        (("ClusterQueue", "vision"), lambda spec: spec.pop("cohortName")),
        (("ClusterQueue", "vision"), lambda spec: spec["resourceGroups"][0]["coveredResources"].reverse()),
        (("ClusterQueue", "vision"), lambda spec: spec["preemption"].update(reclaimWithinCohort="Always")),
        (("Topology", "research"), lambda spec: spec["levels"].reverse()),
        (("ResourceFlavor", "h100"), lambda spec: spec.pop("nodeLabels")),
        (("JobSet", "eval"), lambda spec: spec["replicatedJobs"][0].pop("template")),
        (("TrainJob", "pretrain"), lambda spec: spec["trainer"].update(numNodes="8")),
        (("TrainJob", "pretrain"), lambda spec: spec.pop("runtimeRef")),
    ):
        wrong = copy.deepcopy(made[key])
        change(wrong["spec"])
        assert problems(wrong), (key, change)


def test_files_are_written_and_none_is_replaced(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "flatout", "schedule", "kubernetes", str(path), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert sorted(each.name for each in out.iterdir()) == [
        "jobset-eval.yaml",
        "kueue.yaml",
        "runtime.yaml",
        "trainjob-pretrain.yaml",
    ]
    assert "set `image` of eval" in done.stderr
    (out / "kueue.yaml").write_text("mine")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "kueue.yaml exists and differs" in done.stderr
    assert (out / "kueue.yaml").read_text() == "mine"
