"""Give the user's command what its launcher needs to form one job out of several pods.

In: the command, the number of pods and their GPUs. Out: the command of each pod, with the variables and files that it
needs. Pods differ only in `JOB_COMPLETION_INDEX`, which Kubernetes fills in, and meet in the first pod, whose name is
known before it exists. No launcher uses ssh here, for images have no ssh server; mpirun needs it, so it is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from flatout.change.launchers import first_launcher, launch_word, with_launch_words
from flatout.emit.rendezvous import PORT, with_rendezvous
from flatout.emit.yaml_text import Value

INDEX = "$(JOB_COMPLETION_INDEX)"
HOST_FILE_FOLDER = "/etc/flatout"
_HOST_FILE = "hostfile"
# Kubernetes expands $(NAME) in a variable only if NAME is defined before it, and JOB_COMPLETION_INDEX comes last.
_INDEX_OF_POD: Value = {
    "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"},
}
DEEPSPEED_HOSTS = ("--hostfile", "-H", "--include", "-i", "--exclude", "-e", "--num-nodes", "--launcher", "--ssh-port")
ACCELERATE_KINDS = ("--multi-gpu", "--cpu", "--use-deepspeed", "--use-fsdp", "--use-megatron-lm", "--config-file")


class PodLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """What each pod runs."""

    words: tuple[str, ...]
    variables: tuple[Value, ...] = ()  # entries of the container's `env`
    files: Mapping[str, str] = {}  # by name, in HOST_FILE_FOLDER
    notes: tuple[str, ...] = ()


class PodGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of one job: their number, their GPUs, and their names as far as these are known before they exist."""

    num_pods: int
    num_gpus: int  # of each pod; 0: unknown or none
    host_name: Callable[[int], str]  # of the pod with this index
    index: str = INDEX  # what Kubernetes replaces by the pod's index in a command

    @property
    def first(self) -> str:
        return self.host_name(0)


def pod_launch(words: Sequence[str], pods: PodGroup) -> PodLaunch:
    """Return the launch of a command on all pods. For one pod, only torchrun's number of ranks may be missing."""
    if pods.num_pods == 1:
        return PodLaunch(words=_with_ranks(words, pods.num_gpus))
    launch = _LAUNCHES.get(first_launcher(words) or "", _plain)
    return launch(tuple(words), pods)


def named_interfaces(words: Sequence[str]) -> list[str]:
    """Return a note for each network interface that the command names: a pod's own has another name."""
    return [
        f"{word} names a network interface of a host; in a pod without the host's network it is usually eth0"
        for word in words
        if word.startswith(("NCCL_SOCKET_IFNAME=", "GLOO_SOCKET_IFNAME=", "TP_SOCKET_IFNAME="))
        and word.partition("=")[2].lstrip("=") not in ("eth0", "")
        and not word.partition("=")[2].startswith("^")
    ]


def _torchrun(words: tuple[str, ...], pods: PodGroup) -> PodLaunch:
    meeting = (
        f"--nnodes={pods.num_pods}",
        f"--node-rank={pods.index}",
        f"--master-addr={pods.first}",
        f"--master-port={PORT}",
    )
    return PodLaunch(words=with_rendezvous(_with_ranks(words, pods.num_gpus), meeting))


def _with_ranks(words: Sequence[str], num_gpus: int) -> tuple[str, ...]:
    """Return the command with a rank per GPU; without a number of ranks, torchrun would start one."""
    if not num_gpus or launch_word(words, "torchrun", "--nproc-per-node") is not None:
        return tuple(words)
    return with_launch_words(words, "torchrun", (f"--nproc-per-node={num_gpus}",))


def _accelerate(words: tuple[str, ...], pods: PodGroup) -> PodLaunch:
    added = [
        f"--num_machines={pods.num_pods}",
        f"--machine_rank={pods.index}",
        f"--main_process_ip={pods.first}",
        f"--main_process_port={PORT}",
        "--same_network",
        "--rdzv_backend=static",
    ]
    notes = []
    if pods.num_gpus:
        added.append(f"--num_processes={pods.num_pods * pods.num_gpus}")  # of all machines
    else:
        notes.append("accelerate's --num_processes counts the processes of all pods: pass --gpus, or set it")
    kinds = [kind for kind in ACCELERATE_KINDS if launch_word(words, "accelerate", kind) is not None]
    if not kinds and pods.num_gpus:
        added.append("--multi_gpu")  # else accelerate starts separate jobs on pods with one GPU
    if "--use-deepspeed" in kinds:
        added.append("--deepspeed_multinode_launcher=standard")  # its own default needs ssh
    return PodLaunch(words=with_launch_words(words, "accelerate", added), notes=tuple(notes))


def _deepspeed(words: tuple[str, ...], pods: PodGroup) -> PodLaunch:
    added = (
        f"--hostfile={HOST_FILE_FOLDER}/{_HOST_FILE}",
        "--no_ssh",
        f"--node_rank={pods.index}",
        f"--master_addr={pods.first}",
        f"--master_port={PORT}",
    )
    notes = [
        f"deepspeed's {flag} names other hosts: removed"
        for flag in ("--include", "-i", "--exclude", "-e")
        if launch_word(words, "deepspeed", flag) is not None
    ]
    own_slots = _whole(launch_word(words, "deepspeed", "--num-gpus"))
    num_slots = min(own_slots or pods.num_gpus, pods.num_gpus or own_slots)
    if not num_slots:
        num_slots = 1
        notes.append("deepspeed starts one process per pod, since the number of GPUs is unknown: pass --gpus")
    hosts = "".join(f"{pods.host_name(index)} slots={num_slots}\n" for index in range(pods.num_pods))
    return PodLaunch(
        words=with_launch_words(words, "deepspeed", added, dropped=(*DEEPSPEED_HOSTS, "--num-gpus")),
        files={_HOST_FILE: hosts},
        notes=tuple(notes),
    )


def _plain(words: tuple[str, ...], pods: PodGroup) -> PodLaunch:
    """Give the variables that torch.distributed reads, for a program which is started once in each pod."""
    variables: list[Value] = [
        {"name": "MASTER_ADDR", "value": pods.first},
        {"name": "MASTER_PORT", "value": str(PORT)},
        {"name": "NODE_RANK", "valueFrom": _INDEX_OF_POD},
    ]
    if pods.num_gpus > 1:
        note = (
            f"the command starts one process per pod, and a pod has {pods.num_gpus} GPUs: unless it starts one process"
            f" per GPU itself (by NODE_RANK), use `torchrun --nproc-per-node {pods.num_gpus}`"
        )
        return PodLaunch(words=words, variables=tuple(variables), notes=(note,))
    variables += [
        {"name": "RANK", "valueFrom": _INDEX_OF_POD},
        {"name": "WORLD_SIZE", "value": str(pods.num_pods)},
        {"name": "LOCAL_RANK", "value": "0"},
        {"name": "LOCAL_WORLD_SIZE", "value": "1"},
    ]
    return PodLaunch(words=words, variables=tuple(variables))


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


_LAUNCHES: dict[str, Callable[[tuple[str, ...], PodGroup], PodLaunch]] = {
    "torchrun": _torchrun,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
}
