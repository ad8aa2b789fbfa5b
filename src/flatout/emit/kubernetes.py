"""A JobSet (jobset.x-k8s.io/v1alpha2) that runs the user's command, one pod a host.

The agents of torchrun on several hosts meet in the first pod, by the name that the JobSet gives it. Image and number of
GPUs are the user's: the image is a place to fill in. A command that needs patches expects flatout
and `tuned.toml` in the image's working folder.

A job that is kept alive is started again by `flatout run` inside its pod, within its budget, and by Kubernetes only
where the pod cannot go on: its machine is at fault, which `flatout run` tells by an exit code of its own, or the pod
was taken away. Any other end of the container ends the job. So restarts do not multiply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flatout.change.launchers import with_launch_words
from flatout.emit.command import CONFIG, named_head, tuned_command, unplaced, without_srun
from flatout.emit.heading import commented
from flatout.emit.rendezvous import (
    PORT,
    is_static,
    meets,
    num_nodes,
    with_own_meeting,
    with_rendezvous,
    with_variables,
)
from flatout.emit.yaml_text import Value, yaml_text
from flatout.inside.protocol import Variable
from flatout.records.tuning import Emitted, Tuning

_NODE_RANK = "--node-rank=$(JOB_COMPLETION_INDEX)"
IMAGE = "REPLACE-WITH-YOUR-IMAGE"


NAME, PODS = "flatout-tuned", "workers"
MACHINE_CODE = 75  # EX_TEMPFAIL of sysexits.h
_JOB_LABEL = "batch.kubernetes.io/controller-uid"  # the same for all pods of a Job, those that take another's place too


def emit(
    tuning: Tuning,
    *,
    name: str = NAME,
    image: str = IMAGE,
    gpus: int | None = None,
    limit_s: int | None = None,
    labels: Mapping[str, str] | None = None,
    keeps_meeting: bool = False,
) -> Emitted:
    """`gpus` are of a host, in place of those that it was tuned on; `labels` are the JobSet's, as Kueue's queue.

    `keeps_meeting`: where torchrun's agents meet is as the command says, else in the first pod.
    """
    tuning, notes = without_srun(tuning)
    num_moves = _num_restarts(tuning.keep)
    if num_moves:
        tuning = msgspec.structs.replace(tuning, keep=(*tuning.keep, f"--machine-code={MACHINE_CODE}"))
    hosts = num_nodes(tuning)
    is_nvidia = gpus is not None or tuning.machine.get("device", "").upper().startswith("NVIDIA")
    if gpus is None:
        gpus = _whole(tuning.machine.get("ranks_per_host") or tuning.machine.get("num_ranks"), 0)
    words = _command(tuning, name, keeps_meeting=keeps_meeting)
    container: dict[str, Value] = {"name": "train", "image": image, "command": words}
    if tuning.changes.environment and not tuning.needs_run:
        container["env"] = [
            {"name": name, "value": value} for name, value in sorted(tuning.changes.environment.items())
        ]
    if num_moves:
        container["env"] = [
            {"name": Variable.JOB, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{_JOB_LABEL}']"}}}
        ]
    if gpus and is_nvidia:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    job: dict[str, Value] = {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": num_moves,
        **({"podFailurePolicy": _POLICY} if num_moves else {}),
        **({"activeDeadlineSeconds": limit_s} if limit_s is not None else {}),
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    text = yaml_text(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": name, **({"labels": dict(labels)} if labels else {})},
            "spec": {
                "network": {"enableDNSHostnames": True},
                "replicatedJobs": [{"name": PODS, "replicas": 1, "template": {"spec": job}}],
            },
        }
    )
    to_set = [f"set `image`: {IMAGE} is a place to fill in"] if image == IMAGE else []
    notes = [*to_set, *notes, *unplaced(tuning), *named_head(words)]
    if num_moves and "--ledger" not in tuning.keep:
        notes.append(
            "a pod in another's place begins anew without --ledger, a folder on a volume that outlives the pods"
        )
    if tuning.needs_run:
        has_config = tuning.needs_patches or tuning.changes.changes
        with_config = f"the image must have flatout, and {CONFIG} in its working folder"
        notes.append(with_config if has_config else "the image must have flatout")
    return Emitted(path="jobset.yaml", text=commented(tuning) + text, notes=tuple(notes))


# The first rule that fits counts. What none fits would be counted as the machine's.
_POLICY: dict[str, Value] = {
    "rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": "train", "operator": "NotIn", "values": [MACHINE_CODE]},
        },
    ]
}


def _num_restarts(keep: Sequence[str]) -> int:
    """As `--max-restarts N` among the options of `flatout run` says."""
    given = [keep[place + 1] for place, word in enumerate(keep[:-1]) if word == "--max-restarts"]
    return _whole(given[-1], 0) if given else 0


def first_pod(name: str) -> str:
    """Its name in the JobSet's network."""
    return f"{name}-{PODS}-0-0.{name}"


def _command(tuning: Tuning, name: str, *, keeps_meeting: bool) -> list[str]:
    """Kubernetes puts variables in the place of `$(NAME)`: of ours, and of none of the user's."""
    words = tuple(word.replace("$(", "$$(") for word in tuned_command(tuning))
    if meets(tuning) and keeps_meeting:
        words = with_variables(with_own_meeting(words, num_nodes(tuning)))
        if is_static(words):
            words = with_launch_words(words, "torchrun", (_NODE_RANK,))
    elif meets(tuning):
        words = with_rendezvous(
            words,
            (
                f"--nnodes={num_nodes(tuning)}",
                _NODE_RANK,
                f"--master-addr={first_pod(name)}",
                f"--master-port={PORT}",
            ),
        )
    return list(words)


def _whole(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdigit() else default
