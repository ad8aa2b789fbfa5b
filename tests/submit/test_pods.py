"""Jobs for Kubernetes: manifests that servers take, requests that nodes can serve, launchers that form one job."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.launch import launch_command_parser
from tests.schedule.live.kube_schemas import problems
from torch.distributed.run import get_args_parser

from flatout.cli import main
from flatout.records.quantity import parse_quantity

DATA = Path(__file__).parents[1] / "data" / "readers"
NODES, TABLE = str(DATA / "kubernetes_nodes.json"), str(DATA / "kubernetes_nodes.toml")
REQUIRED, PREFERRED = "kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-preferred-topology"
INDEX_ANNOTATION = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
Submit = Callable[..., "Manifest"]


class Manifest:
    """The objects that were written, and what was said about them."""

    def __init__(self, objects: list[dict[str, Any]], notes: list[str], file: str) -> None:
        self.objects, self.notes, self.file = objects, notes, file
        self.job = objects[-1]

    @property
    def template(self) -> dict[str, Any]:
        """The template of the pods that train."""
        if self.job["kind"] == "MPIJob":
            return self.job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]  # type: ignore[no-any-return]
        return self.job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]  # type: ignore[no-any-return]

    @property
    def pod(self) -> dict[str, Any]:
        return self.template["spec"]  # type: ignore[no-any-return]

    @property
    def container(self) -> dict[str, Any]:
        (container,) = self.pod["containers"]
        return container  # type: ignore[no-any-return]

    @property
    def shm(self) -> dict[str, Any]:
        """The volume at /dev/shm."""
        (name,) = [each["name"] for each in self.container["volumeMounts"] if each["mountPath"] == "/dev/shm"]
        (volume,) = [each for each in self.pod["volumes"] if each["name"] == name]
        return volume["emptyDir"]  # type: ignore[no-any-return]

    def words(self, index: int, kind: str = "JobSet") -> list[str]:
        """The command of the pod with this index, as the kubelet expands it."""
        assert self.job["kind"] == kind
        variables = {"JOB_COMPLETION_INDEX": str(index)}
        return [_expanded(word, variables) for word in self.container["command"]]

    def variables(self, index: int) -> dict[str, str]:
        """The variables of the pod with this index."""
        found = {}
        for each in self.container.get("env", []):
            if "value" in each:
                found[each["name"]] = each["value"]
                assert "$(" not in each["value"], "JOB_COMPLETION_INDEX is defined after these, so it is not expanded"
            else:
                assert each["valueFrom"] == {"fieldRef": {"fieldPath": INDEX_ANNOTATION}}
                found[each["name"]] = str(index)
        return found


def _expanded(word: str, variables: dict[str, str]) -> str:
    """Expand as Kubernetes does: `$(NAME)` of a known variable, `$$` is a `$` that begins no expansion."""

    def replaced(match: re.Match[str]) -> str:
        if match[0].startswith("$$"):
            return match[0][1:]
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$\([^)]*\)|\$\(([^)]*)\)", replaced, word)


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Submit:
    monkeypatch.chdir(tmp_path)

    def made(options: str, *command: str, name: str = "j") -> Manifest:
        words = ["--json", "--to", "kubernetes", "--image", "i", "--name", name, *options.split(), "--", *command]
        monkeypatch.setattr(sys, "argv", ["flatout", "submit", *words])
        code = main()
        out, err = capfd.readouterr()
        assert code == 0, err
        result = json.loads(out)
        (file,) = result["files"]
        objects = list(yaml.safe_load_all(Path(file).read_text(encoding="utf-8")))
        assert [problem for each in objects for problem in problems(each, has_namespace=False)] == []
        return Manifest(objects, result["notes"], file)

    return made


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    monkeypatch.chdir(tmp_path)

    def made(options: str) -> str:
        words = ["--dry-run", "--to", "kubernetes", *options.split(), "--", "python", "t.py"]
        monkeypatch.setattr(sys, "argv", ["flatout", "submit", *words])
        assert main() == 2
        return capfd.readouterr().err

    return made


LAUNCHERS = {
    "torchrun": ("torchrun", "--standalone", "--nproc-per-node", "8", "t.py"),
    "accelerate": ("accelerate", "launch", "--num_processes", "8", "t.py"),
    "deepspeed": ("deepspeed", "--hostfile", "/job/hostfile", "--num_gpus", "8", "t.py"),
    "mpirun": ("mpirun", "-np", "16", "-H", "a:8,b:8", "python", "t.py"),
    "python": ("python", "t.py"),
}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_job_has_shared_memory_within_its_memory_and_requests_that_fit_a_node(
    submit: Submit, launcher: str, nodes: int
) -> None:
    made = submit(f"--nodes {nodes} --gpus 8 --queue q --kube-nodes {NODES}", *LAUNCHERS[launcher])
    limit = parse_quantity(made.container["resources"]["limits"]["memory"])
    assert made.shm["medium"] == "Memory"
    assert parse_quantity(made.shm["sizeLimit"]) == limit / 2
    requests = made.container["resources"]["requests"]
    assert requests["memory"] == made.container["resources"]["limits"]["memory"]
    assert "cpu" not in made.container["resources"]["limits"]
    assert parse_quantity(requests["cpu"]) == 190, "95 % of 200 allocatable cores, and not of the 208 that the node has"
    assert limit == 1900 * 2**30
    assert requests["nvidia.com/gpu"] == made.container["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in made.pod["tolerations"]


def test_part_of_a_node_gets_the_same_part_of_its_cores_and_memory(submit: Submit) -> None:
    half = submit(f"--gpus 4 --kube-nodes {NODES}", "python", "t.py").container["resources"]["requests"]
    assert (half["cpu"], half["memory"]) == ("95", "950Gi")
    # 94 less 1.5 cores of DaemonSets, a quarter of that; the 4-GPU nodes have 62 * 0.95 / 2 = 29.45 cores for two GPUs.
    two = submit(f"--gpus 2 --kube-nodes {TABLE}", "python", "t.py").container["resources"]["requests"]
    assert (two["cpu"], two["memory"]) == ("23", "228Gi"), "it fits both kinds of nodes"


def test_what_is_asked_for_replaces_the_share_if_a_node_has_it(submit: Submit, refused: Callable[[str], str]) -> None:
    made = submit(f"--gpus 8 --kube-nodes {NODES} --cpus 190 --memory 1900Gi --shm 64Gi", "python", "t.py")
    assert made.container["resources"]["requests"]["cpu"] == "190"
    assert made.shm == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert "`--cpus` is 191, but a node can allocate at most 190" in refused(
        f"--gpus 8 --kube-nodes {NODES} --cpus 191"
    )
    assert "`--memory` is 1901Gi, but a node can allocate at most 1900Gi" in refused(
        f"--gpus 8 --kube-nodes {NODES} --memory 1901Gi"
    )


def test_without_nodes_and_memory_the_size_of_shared_memory_is_said(submit: Submit) -> None:
    made = submit("--gpus 4", "python", "t.py")
    assert made.shm == {"medium": "Memory", "sizeLimit": "32Gi"}
    assert made.container["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    (note,) = [note for note in made.notes if "no memory is requested" in note]
    assert "/dev/shm may take 32Gi of the node's: pass --kube-nodes or --memory" in note
    assert submit("", "python", "t.py").shm["sizeLimit"] == "8Gi"
    assert not [note for note in submit("--memory 8Gi", "python", "t.py").notes if "no memory" in note]


def test_one_node_asks_for_one_host_and_several_for_the_level_that_was_named(submit: Submit) -> None:
    one = submit("--gpus 8 --queue q --memory 8Gi", "python", "t.py")
    assert one.template["metadata"]["annotations"] == {REQUIRED: "kubernetes.io/hostname"}
    assert [note for note in one.notes if "pass --topology none" in note]
    none = submit("--gpus 8 --queue q --memory 8Gi --topology none", "python", "t.py")
    assert "metadata" not in none.template
    assert [note for note in none.notes if note.startswith("without a required host, Kueue may admit the job")]
    two = submit("--nodes 2 --gpus 8 --queue q --memory 8Gi", "torchrun", "t.py")
    assert "metadata" not in two.template and two.notes == []
    rack = submit("--nodes 2 --queue q --memory 8Gi --topology cloud.example.com/rack", "torchrun", "t.py")
    assert rack.template["metadata"]["annotations"] == {REQUIRED: "cloud.example.com/rack"}
    near = submit("--nodes 2 --queue q --memory 8Gi --topology preferred:cloud.example.com/rack", "torchrun", "t.py")
    assert near.template["metadata"]["annotations"] == {PREFERRED: "cloud.example.com/rack"}


def test_pods_that_are_not_queued_as_one_job_are_warned_of(submit: Submit) -> None:
    gang = "without --queue, the pods start one by one: some can hold GPUs while others wait"
    assert gang in submit("--nodes 2 --gpus 8", "torchrun", "t.py").notes
    assert gang not in submit("--nodes 2 --gpus 8 --queue q", "torchrun", "t.py").notes
    assert gang not in submit("--gpus 8", "torchrun", "t.py").notes


def test_the_kind_of_gpu_and_the_network_are_asked_for(submit: Submit, refused: Callable[[str], str]) -> None:
    made = submit(
        f"--nodes 2 --gpus 4 --queue q --kube-nodes {NODES} --gpu-type h100 --gpu-memory 80 --network rdma/hca",
        "torchrun", "t.py",
    )  # fmt: skip
    assert made.pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    (term,) = made.pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [{"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["76293"]}]
    assert made.container["resources"]["limits"]["rdma/hca"] == 2, "half of the node's, as of its GPUs"
    assert made.container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert not [note for note in made.notes if "which the pods do not use" in note]
    assert "the ClusterQueue must cover rdma/hca, or Kueue never admits the job" in made.notes
    bare = submit(f"--nodes 2 --gpus 8 --queue q --kube-nodes {NODES}", "torchrun", "t.py")
    assert "the nodes have rdma/hca, which the pods do not use: pass --network rdma/hca" in bare.notes
    assert "`--gpu-memory` is 86 GB, but the GPUs of the nodes have at most 85.52 GB" in refused(
        f"--gpus 8 --kube-nodes {NODES} --gpu-memory 86"
    )
    assert "`--network` is rdma/hca=5, but the nodes that fit can allocate 4" in refused(
        f"--gpus 8 --kube-nodes {NODES} --network rdma/hca=5"
    )
    assert "`--gpu-type` is `a100`, but the nodes with enough GPUs have NVIDIA-H100-80GB-HBM3" in refused(
        f"--gpus 8 --kube-nodes {NODES} --gpu-type a100"
    )


def test_nodes_that_hold_the_data_set_are_preferred_and_never_required(submit: Submit) -> None:
    affinity = submit("--gpus 1 --data-set imagenet", "python", "t.py").pod["affinity"]["nodeAffinity"]
    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    (preferred,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = preferred["preference"]["matchExpressions"]
    assert expression == {"key": "data.flatout.dev/imagenet", "operator": "Exists"}


def test_a_type_without_nodes_is_any_product_of_that_name(submit: Submit, refused: Callable[[str], str]) -> None:
    affinity = submit("--gpus 1 --gpu-type h100", "python", "t.py").pod["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    assert expression["operator"] == "In" and "NVIDIA-H100-80GB-HBM3" in expression["values"]
    assert all(re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", each) for each in expression["values"])
    exact = submit("--gpus 1 --gpu-type NVIDIA-H999-New", "python", "t.py")
    assert exact.pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H999-New"}
    assert "must be a GPU in the catalogue or a value of the node label" in refused("--gpus 1 --gpu-type h999")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (f"--gpus 9 --kube-nodes {NODES}", "`--gpus` is 9, but no node can allocate more than 8 GPUs to pods"),
        (f"--nodes 3 --gpus 8 --kube-nodes {NODES}", "the job needs 3 nodes, but the cluster has 2 that fit"),
        ("--memory 64Gi --shm 64Gi", "`--shm` must be less than the memory of the pod, because it counts as such"),
        ("--memory 512", "`--memory` must be at least 64Mi, but is `512`"),
        ("--memory 65535Ki", "`--memory` must be at least 64Mi, but is `65535Ki`"),
        ("--memory lots", "`--memory` must be a size such as 512Gi, but is `lots`"),
        ("--shm -1Gi", "`--shm` must be a size"),
        ("--network rdma", "`--network` must be RESOURCE or RESOURCE=N"),
        ("--network rdma/hca=0", "`--network` must be RESOURCE or RESOURCE=N"),
        ("--topology a/b/c", "`--topology` must be a node label"),
        ("--cpus 0", "`--cpus` must be"),
        ("--queue Team_A", "`--queue` must be the name of a LocalQueue"),
        (f"--queue {'q' * 64}", "`--queue` must be the name of a LocalQueue"),
        (f"--name {'j' * 47}", "the job's name must have at most 45 characters"),
        (f"--nodes 101 --name {'j' * 44}", "the job's name must have at most 43 characters"),
        ("--kube-nodes missing.json", "`missing.json` cannot be read"),
    ],
)
def test_what_no_cluster_could_serve_is_refused_in_one_line(
    refused: Callable[[str], str], options: str, why: str
) -> None:
    error = refused(options)
    assert error.startswith("error: ") and why in error and "Traceback" not in error


def test_the_least_memory_is_taken(submit: Submit) -> None:
    assert submit("--memory 64Mi", "python", "t.py").shm["sizeLimit"] == "32Mi"
    assert submit("--memory 65Mi --shm 64Mi", "python", "t.py").shm["sizeLimit"] == "64Mi"


def test_the_longest_name_is_one_that_pods_can_have(submit: Submit) -> None:
    submit("", "python", "t.py", name="j" * 45)
    submit("--nodes 100 --queue q", "torchrun", "t.py", name="j" * 44)


@pytest.mark.parametrize("word", ["on", "y", "null", "true", "e1"])
def test_names_that_yaml_could_take_for_something_else_stay_names(submit: Submit, word: str) -> None:
    made = submit(f"--nodes 2 --queue {word}", "torchrun", "t.py", name=word)
    assert made.job["metadata"] == {"name": word, "labels": {"kueue.x-k8s.io/queue-name": word}}
    number = submit("--queue 123", "python", "t.py").job["metadata"]["labels"]
    assert number == {"kueue.x-k8s.io/queue-name": "123"}


def test_arguments_arrive_as_they_were_typed(submit: Submit) -> None:
    odd = [
        "yes",
        "on",
        "1e3",
        "0x1f",
        "12:30",
        "~",
        "",
        "a\tb",
        "é",
        "\U0001f680",
        "\\ud83d",
        "$(HOME)",
        "$$(X)",
        "- a: b",
    ]
    assert submit("--memory 8Gi", "python", "t.py", *odd).words(0)[2:] == odd


def test_torchrun_gets_a_rank_per_pod_and_meets_in_the_first(submit: Submit) -> None:
    made = submit("--nodes 2 --gpus 8", *LAUNCHERS["torchrun"])
    for index in (0, 1):
        read = get_args_parser().parse_args(made.words(index)[1:])
        assert (read.nnodes, read.node_rank, read.master_addr) == ("2", index, "j-workers-0-0.j")
        assert (read.rdzv_backend, read.standalone, read.nproc_per_node) == ("static", False, "8")


def test_accelerate_counts_the_processes_of_all_pods_and_needs_no_ssh(submit: Submit) -> None:
    made = submit("--nodes 2 --gpus 8", *LAUNCHERS["accelerate"])
    for index in (0, 1):
        read = launch_command_parser().parse_args(made.words(index)[2:])
        assert (read.num_machines, read.machine_rank, read.num_processes) == (2, index, 16)
        assert (read.main_process_ip, read.main_process_port) == ("j-workers-0-0.j", 29500)
        assert read.multi_gpu and read.same_network and read.training_script == "t.py"
    made = submit("--nodes 2 --gpus 8", "accelerate", "launch", "--use_deepspeed", "t.py")
    read = launch_command_parser().parse_args(made.words(1)[2:])
    assert read.use_deepspeed and not read.multi_gpu and read.deepspeed_multinode_launcher == "standard"
    for kind in ("--use_fsdp", "--config_file=c.yaml"):
        assert "--multi_gpu" not in submit("--nodes 2 --gpus 8", "accelerate", "launch", kind, "t.py").words(0)


def test_one_gpu_per_pod_is_still_one_job_with_accelerate(submit: Submit) -> None:
    words = submit("--nodes 2 --gpus 1", "accelerate", "launch", "t.py").words(1)
    read = launch_command_parser().parse_args(words[2:])
    assert read.multi_gpu and read.num_processes == 2, "else each pod trains alone"


def test_deepspeed_has_a_host_file_and_a_rank_and_no_ssh(submit: Submit) -> None:
    made = submit("--nodes 3 --gpus 8", *LAUNCHERS["deepspeed"])
    files = made.objects[0]
    assert files["kind"] == "ConfigMap"
    (mount,) = [each for each in made.container["volumeMounts"] if each["name"] == "hosts"]
    (volume,) = [each for each in made.pod["volumes"] if each["name"] == "hosts"]
    assert volume["configMap"]["name"] == files["metadata"]["name"]
    assert files["data"]["hostfile"].splitlines() == [f"j-workers-0-{index}.j slots=8" for index in range(3)]
    assert made.words(2) == [
        "deepspeed", f"--hostfile={mount['mountPath']}/hostfile", "--no_ssh", "--node_rank=2",
        "--master_addr=j-workers-0-0.j", "--master_port=29500", "t.py",
    ]  # fmt: skip
    noted = submit("--nodes 2", "deepspeed", "--include", "a:0@b:0", "t.py")
    assert "--include" not in noted.words(0)
    assert "deepspeed's --include names other hosts: removed" in noted.notes
    assert any("pass --gpus" in note for note in noted.notes)
    assert [each["kind"] for each in submit("--gpus 8", *LAUNCHERS["deepspeed"]).objects] == ["JobSet"]


@pytest.mark.parametrize(("asked", "slots"), [("4", 4), ("8", 8), ("16", 8)])
def test_deepspeed_starts_at_most_as_many_processes_as_a_pod_has_gpus(submit: Submit, asked: str, slots: int) -> None:
    made = submit("--nodes 2 --gpus 8", "deepspeed", "--num_gpus", asked, "t.py")
    assert f"j-workers-0-0.j slots={slots}" in made.objects[0]["data"]["hostfile"]
    assert "--num_gpus" not in made.words(0)


@pytest.mark.parametrize(
    "command", [("accelerate", "launch", "--num_machines", "3", "t.py"), ("deepspeed", "--num_nodes=3", "t.py")]
)
def test_the_number_of_nodes_is_that_of_the_command_if_there_is_no_other(
    submit: Submit, command: tuple[str, ...]
) -> None:
    assert submit("--gpus 8", *command).job["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] == 3
    assert (
        submit("--nodes 2 --gpus 8", *command).job["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] == 2
    )


@pytest.mark.parametrize("nodes", [1, 2])
def test_torchrun_starts_a_rank_per_gpu_unless_the_command_says_another_number(submit: Submit, nodes: int) -> None:
    read = get_args_parser().parse_args(submit(f"--nodes {nodes} --gpus 8", "torchrun", "t.py").words(0)[1:])
    assert read.nproc_per_node == "8"
    own = submit(f"--nodes {nodes} --gpus 8", "torchrun", "--nproc_per_node=2", "t.py").words(0)
    assert get_args_parser().parse_args(own[1:]).nproc_per_node == "2"


def test_mpirun_on_several_nodes_is_an_mpi_job_with_its_hosts_and_variables(submit: Submit) -> None:
    made = submit("--nodes 2 --gpus 8 --time 1h", *LAUNCHERS["mpirun"])
    spec = made.job["spec"]
    assert (made.job["kind"], Path(made.file).name) == ("MPIJob", "mpijob.yaml")
    assert spec["slotsPerWorker"] == 8 and spec["runPolicy"]["activeDeadlineSeconds"] == 3600
    launcher = spec["mpiReplicaSpecs"]["Launcher"]
    (container,) = launcher["template"]["spec"]["containers"]
    assert container["command"] == [
        "mpirun", "-x", "MASTER_ADDR=j-worker-0.j", "-x", "MASTER_PORT=29500", "-np", "16", "python", "t.py",
    ]  # fmt: skip
    assert "resources" not in container, "the launcher holds no GPUs"
    worker = spec["mpiReplicaSpecs"]["Worker"]
    assert worker["replicas"] == 2 and made.container["command"] == ["/usr/sbin/sshd", "-De"]
    assert any("Kubeflow's MPI operator" in note for note in made.notes)
    bare = submit("--nodes 2 --gpus 4", "mpirun", "python", "t.py").job["spec"]["mpiReplicaSpecs"]["Launcher"]
    assert bare["template"]["spec"]["containers"][0]["command"][1:3] == ["-np", "8"]
    own = submit("--nodes 2 --gpus 4", "mpirun", "-x", "MASTER_ADDR=h", "python", "t.py").job
    assert str(own).count("MASTER_ADDR") == 1


def test_plain_python_gets_the_variables_of_torch_distributed(submit: Submit) -> None:
    made = submit("--nodes 2 --gpus 1 --memory 8Gi --queue q", "python", "t.py")
    for index in (0, 1):
        assert made.variables(index) == {
            "MASTER_ADDR": "j-workers-0-0.j",
            "MASTER_PORT": "29500",
            "NODE_RANK": str(index),
            "RANK": str(index),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
        }
    assert made.notes == [] and made.words(0) == ["python", "t.py"]
    assert "env" not in submit("--gpus 1", "python", "t.py").container


def test_plain_python_with_several_gpus_per_pod_is_told_that_it_must_start_their_processes(submit: Submit) -> None:
    made = submit("--nodes 2 --gpus 8", "python", "t.py")
    assert "RANK" not in made.variables(0) and made.variables(1)["NODE_RANK"] == "1"
    (note,) = [note for note in made.notes if "one process per pod" in note]
    assert "use `torchrun --nproc-per-node 8`" in note


def test_an_interface_of_a_host_is_noted(submit: Submit) -> None:
    noted = "names a network interface of a host"
    for word, is_noted in (("=ib0", True), ("=enp90s0np0", True), ("==ens6", True), ("=eth0", False), ("=^lo", False)):
        made = submit("--nodes 2", "env", f"NCCL_SOCKET_IFNAME{word}", "torchrun", "t.py")
        assert any(noted in note for note in made.notes) is is_noted, word


def test_what_only_pods_have_is_noted_for_other_schedulers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--dry-run", "--json", "--to", "slurm", "--shm", "1Gi", "--network", "rdma/hca", "--", "true"]
    monkeypatch.setattr(sys, "argv", ["flatout", "submit", *words])
    assert main() == 0
    notes = json.loads(capfd.readouterr().out)["notes"]
    assert [note.rpartition(" ")[2] for note in notes] == ["--shm", "--network"]
