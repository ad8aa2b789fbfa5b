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
from flatout.schedule.live.flavor_nodes import check_flavors
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
        ("h100 = 256", 'h100 = "x"', 'must be a whole number, but is "x"'),
        ('name = "vision"', 'name = "Vision"', "must be lower-case"),
        ('name = "vision"', 'name = "language"', "two of the teams are named `language`"),
        ('team = "vision"', 'team = "x"', "there is no team `x`"),
        ('priority = "urgent"', 'priority = "x"', "there is no priority `x`"),
        ('within = "cloud.example.com/block"', 'within = "x"', "must be a level of the topology"),
        ("gpus_per_node = 4", "gpus_per_node = 16", "no node has 16 GPUs"),
        ("gpus_per_node = 4", "gpus = 4", "`gpus` in .* is not a known name"),
        ("[cluster]", "[cluster", "Expected ']'"),
        ('"cloud.example.com/rack"]', '"kubernetes.io/hostname"]', "narrowest level in any case"),
        ("node_labels =", "#", "node_labels must name its nodes"),
        ("weight = 2", "weight = 0", "must be more than 0"),
        ("weight = 2", "weight = nan", "must be more than 0"),
        ("urgent = 1000", "urgent = 2147483648", "its value must be at most 2,147,483,647"),
        ('HBM3" }', 'HBM3 80" }', "is not a valid value of a node label"),
        ('"cloud.example.com/rack"]', '"cloud.example.com/block"]', "each once"),
        ("gpus_per_node = 4", "gpus_per_node = 4\nmemory_gib = 1801", "no node of any flavor has 4 GPUs, 1801 GiB"),
        ("gpus_per_node = 4", "gpus_per_node = 4\nshm_gib = 900", "is a part of the memory, which is 900 GiB"),
        ("gpus_per_node = 4", "gpus_per_node = 4\nmemory_gib = 0", "memory_gib and shm_gib must be at least 1"),
        ("gpus_per_node = 4", "gpus_per_node = 4\nrestarts = -1", "`restarts` must be at least 0"),
        ("gpus_per_node = 4", 'gpus_per_node = 4\nflavor = "x"', "there is no flavor `x`"),
        ("gpus_per_node = 4", "gpus_per_node = 4\ngpu_memory_gb = nan", "gpu_memory_gb must be more than 0"),
        ("gpus_per_node = 4", "gpus_per_node = 4\nnetwork = {rdma = 1}", "must have resources with their numbers"),
        ('name = "eval"', f'name = "{"e" * 46}"', "the job's name must have at most 45 characters"),
        (
            "nodes = 2",
            'nodes = 3\nwithin = "kubernetes.io/hostname"',
            "3 \\* 4 GPUs are not `within` one host, which has 8",
        ),
        ('["torchrun", "train.py"]', '["deepspeed", "train.py"]', 'deepspeed on several nodes needs `kind = "jobset"`'),
    ],
)
def test_a_broken_rule_is_refused_in_one_line(path: Path, old: str, new: str, why: str) -> None:
    assert old in TEAMS
    path.write_text(TEAMS.replace(old, new, 1))
    with pytest.raises(InputError, match=why) as error:
        read_teams(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("levels", "is_taken"), [(15, True), (16, False)])
def test_kueue_takes_sixteen_levels_with_the_host(path: Path, levels: int, is_taken: bool) -> None:
    topology = ", ".join(f'"l{level}"' for level in range(levels))
    old = 'topology = ["cloud.example.com/block", "cloud.example.com/rack"]'
    path.write_text(TEAMS.split("[[jobs]]")[0].replace(old, f"topology = [{topology}]"))
    if is_taken:
        assert [problem for each in objects(path).values() for problem in problems(each)] == []
    else:
        with pytest.raises(InputError, match="topology must have at most 15 levels"):
            read_teams(path)


@pytest.mark.parametrize(("labels", "is_taken"), [(8, True), (9, False)])
def test_kueue_takes_eight_labels_of_a_flavor(path: Path, labels: int, is_taken: bool) -> None:
    table = ", ".join(f'"l{label}" = "yes"' for label in range(labels))
    path.write_text(TEAMS.replace('{ "nvidia.com/gpu.product" = "NVIDIA-H100-80GB-HBM3" }', f"{{ {table} }}"))
    if is_taken:
        assert objects(path)["ResourceFlavor", "h100"]["spec"]["nodeLabels"]["l0"] == "yes"
    else:
        with pytest.raises(InputError, match="at most 8 node_labels"):
            read_teams(path)


def pod(job: dict[str, Any]) -> dict[str, Any]:
    return job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]  # type: ignore[no-any-return]


def added(path: Path, job: str, *, before: str = "") -> dict[tuple[str, str], dict[str, Any]]:
    """The objects of the teams with one more job, which their servers take."""
    text = TEAMS.replace("[[teams]]", f"{before}\n[[teams]]", 1)
    path.write_text(f'{text}\n[[jobs]]\nname = "more"\nteam = "vision"\ngpus_per_node = 8\n{job}\n')
    made = objects(path)
    assert {key: problems(each) for key, each in made.items() if problems(each)} == {}
    return made


def test_every_job_has_shared_memory_within_its_memory_also_in_a_runtime(path: Path) -> None:
    made = objects(path)
    runtime = made["ClusterTrainingRuntime", "flatout-torch-block"]["spec"]["template"]
    for template, size in ((pod(made["JobSet", "eval"]), "450Gi"), (pod(runtime), "900Gi")):
        (volume,) = template["spec"]["volumes"]
        assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": size}
        (container,) = template["spec"]["containers"]
        assert {"name": volume["name"], "mountPath": "/dev/shm"} in container["volumeMounts"]
    limits = made["TrainJob", "pretrain"]["spec"]["trainer"]["resourcesPerNode"]["limits"]
    assert limits == {"memory": "1800Gi", "nvidia.com/gpu": 8}


def test_a_job_on_one_node_must_have_one_host_and_is_warned_of_without_a_topology(path: Path) -> None:
    """kubernetes-sigs/kueue#5243: with a preferred host, 8 GPUs free on four hosts admitted a pod that needs 8."""
    made = added(path, 'nodes = 1\ncommand = ["python", "t.py"]')
    required = {"kueue.x-k8s.io/podset-required-topology": "kubernetes.io/hostname"}
    assert pod(made["JobSet", "more"])["metadata"]["annotations"] == required
    made = added(path, 'nodes = 1\nkind = "trainjob"\ncommand = ["torchrun", "t.py"]')
    name = made["TrainJob", "more"]["spec"]["runtimeRef"]["name"]
    runtime = made["ClusterTrainingRuntime", name]["spec"]["template"]
    assert name == "flatout-torch-hostname" and pod(runtime)["metadata"]["annotations"] == required
    topology = 'topology = ["cloud.example.com/block", "cloud.example.com/rack"]'
    text = path.read_text().replace(topology, "").replace('within = "cloud.example.com/block"', "")
    path.write_text(text)
    notes = [note for file in manifests(read_teams(path)) for note in file.notes]
    (warning,) = [note for note in notes if "has no topology" in note]
    assert warning.startswith("job more needs one host, but [cluster] has no topology: Kueue may admit it")


@pytest.mark.parametrize("api", ["v1beta2", "v1beta1"])
def test_queues_are_written_for_either_version_of_kueue(path: Path, api: str) -> None:
    path.write_text(TEAMS.replace('name = "research"', f'name = "research"\nkueue_api = "{api}"'))
    made = objects(path)
    assert {key: problems(each) for key, each in made.items() if problems(each)} == {}
    queue = made["ClusterQueue", "vision"]
    assert queue["apiVersion"] == f"kueue.x-k8s.io/{api}"
    assert ("cohort" in queue["spec"], "cohortName" in queue["spec"]) == (api == "v1beta1", api == "v1beta2")


def test_the_network_of_a_job_is_in_its_pods_and_in_the_quotas(path: Path) -> None:
    """A resource that no ClusterQueue covers is never admitted."""
    text = TEAMS.replace(
        "memory_gib_per_node = 1800", 'memory_gib_per_node = 1800\nnetwork_per_node = {"rdma/hca" = 8}'
    )
    job = 'name = "more"\nteam = "vision"\ngpus_per_node = 8\nnodes = 2\nnetwork = {"rdma/hca" = 8}'
    path.write_text(f'{text}\n[[jobs]]\n{job}\ncommand = ["torchrun", "t.py"]\n')
    made = objects(path)
    assert {key: problems(each) for key, each in made.items() if problems(each)} == {}
    (container,) = pod(made["JobSet", "more"])["spec"]["containers"]
    assert container["resources"]["limits"]["rdma/hca"] == 8
    assert quotas(made["ClusterQueue", "vision"])["rdma/hca"] == ["256", "128", None]
    (group,) = made["ClusterQueue", "vision"]["spec"]["resourceGroups"]
    assert group["coveredResources"] == ["cpu", "memory", "nvidia.com/gpu", "rdma/hca"]
    path.write_text(f'{TEAMS}\n[[jobs]]\n{job}\ncommand = ["torchrun", "t.py"]\n')
    with pytest.raises(InputError, match="job more: no node of any flavor has 8 GPUs, 8 rdma/hca"):
        read_teams(path)


def test_a_job_chooses_its_flavor_its_memory_and_the_memory_of_its_gpus(path: Path) -> None:
    small = (
        '[[flavors]]\nname = "a100"\nnodes = 2\ngpus_per_node = 8\ncpus_per_node = 64\nmemory_gib_per_node = 900\n'
        'node_labels = { "nvidia.com/gpu.product" = "NVIDIA-A100-SXM4-80GB" }'
    )
    needs = 'flavor = "a100"\nmemory_gib = 800\nshm_gib = 100\ngpu_memory_gb = 80'
    job = f'nodes = 2\n{needs}\ncommand = ["torchrun", "t.py"]'
    spec = pod(added(path, job, before=small)["JobSet", "more"])["spec"]
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    assert spec["volumes"][0]["emptyDir"]["sizeLimit"] == "100Gi"
    assert spec["containers"][0]["resources"]["requests"]["memory"] == "800Gi"
    assert "nvidia.com/gpu.memory" in str(spec["affinity"])
    with pytest.raises(InputError, match="shm_gib is 1000, but is a part of the memory, which is 900 GiB"):
        added(path, 'nodes = 2\nshm_gib = 1000\ncommand = ["torchrun", "t.py"]', before=small)
    free = pod(added(path, 'nodes = 2\ncommand = ["torchrun", "t.py"]', before=small)["JobSet", "more"])["spec"]
    assert "nodeSelector" not in free, "any flavor will do"
    assert free["containers"][0]["resources"]["requests"]["cpu"] == "64", "it fits both"


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ('["mpirun", "python", "t.py"]', "MPIJob"),
        ('["deepspeed", "t.py"]', "JobSet"),
        ('["accelerate", "launch", "t.py"]', "JobSet"),
        ('["python", "t.py"]', "JobSet"),
    ],
)
def test_each_launcher_forms_one_job_of_a_teams_pods(path: Path, command: str, kind: str) -> None:
    made = added(path, f"nodes = 2\ncommand = {command}")
    job = made[kind, "more"]
    assert job["metadata"]["namespace"] == "vision"
    assert "more-worker" in str(job), "its pods meet by name"
    if ("ConfigMap", "more-hosts") in made:
        assert made["ConfigMap", "more-hosts"]["metadata"]["namespace"] == "vision"


def test_accelerate_in_a_train_job_meets_in_the_first_pod_of_trainer(path: Path) -> None:
    made = added(path, 'nodes = 2\nkind = "trainjob"\ncommand = ["accelerate", "launch", "t.py", "$(date)"]')
    words = made["TrainJob", "more"]["spec"]["trainer"]["command"]
    assert {"--main_process_ip=more-node-0-0.more", "--machine_rank=$(JOB_COMPLETION_INDEX)"} <= set(words)
    assert words[-1] == "$$(date)"


def test_equal_runtimes_are_shared_and_others_have_names_of_their_own(path: Path) -> None:
    same = 'nodes = 4\nkind = "trainjob"\nwithin = "cloud.example.com/block"\ncommand = ["torchrun", "t.py"]'
    made = added(path, same)
    assert [name for kind, name in made if kind == "ClusterTrainingRuntime"] == ["flatout-torch-block"]
    made = added(path, f"{same}\nshm_gib = 64")
    names = [name for kind, name in made if kind == "ClusterTrainingRuntime"]
    assert names == ["flatout-torch-block", "flatout-torch-block.2"]
    assert made["TrainJob", "more"]["spec"]["runtimeRef"]["name"] == "flatout-torch-block.2"


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


NODES = Path(__file__).parents[2] / "data" / "readers" / "kubernetes_nodes.json"


@pytest.mark.parametrize(
    ("nodes", "cpus", "memory", "network", "why"),
    [
        (2, 200, 2000, 4, None),
        (3, 200, 2000, 4, "it has 3 nodes, but the cluster has 2 with its labels that take pods"),
        (2, 201, 2000, 4, "cpus_per_node is 201, but a node can allocate 200"),
        (2, 200, 2001, 4, "memory_gib_per_node is 2001, but a node can allocate 2000Gi"),
        (2, 200, 2000, 5, "network_per_node has 5 rdma/hca, but a node can allocate 4"),
    ],
)
def test_a_flavor_has_at_most_what_its_nodes_can_allocate(
    path: Path, nodes: int, cpus: int, memory: int, network: int, why: str | None
) -> None:
    path.write_text(
        TEAMS.split("[[teams]]")[0]
        .replace("nodes = 64", f"nodes = {nodes}")
        .replace("cpus_per_node = 96", f'cpus_per_node = {cpus}\nnetwork_per_node = {{ "rdma/hca" = {network} }}')
        .replace("memory_gib_per_node = 1800", f"memory_gib_per_node = {memory}")
        + '[[teams]]\nname = "t"\ngpus = { h100 = 8 }\n'
    )
    if why is None:
        check_flavors(read_teams(path), NODES)
        return
    with pytest.raises(InputError) as error:
        check_flavors(read_teams(path), NODES)
    assert str(error.value) == f"flavor h100: {why}"
