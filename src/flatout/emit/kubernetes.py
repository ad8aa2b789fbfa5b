"""Write a JobSet (jobset.x-k8s.io/v1alpha2) that runs the user's command, one pod per host.

On several hosts, torchrun's agents meet in the first pod, by its name in the JobSet. The user supplies the image and
the number of GPUs: the image is a placeholder. A command that needs patches expects flatout and `tuned.toml` in the
image's working folder.

A job that is kept alive is restarted by `flatout run` inside its pod, within its budget. Kubernetes restarts it only if
the pod cannot continue: its machine is at fault, which `flatout run` reports by a separate exit code, or the pod was
removed. Any other end of the container ends the job, so the two kinds of restarts do not multiply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flatout.change.launchers import with_launch_words
from flatout.emit.command import CONFIG, config_note, named_head, tuned_command, unplaced, without_srun
from flatout.emit.heading import commented
from flatout.emit.rendezvous import (
    PORT,
    is_static,
    needs_rendezvous,
    num_nodes,
    with_own_rendezvous,
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
_JOB_LABEL = "batch.kubernetes.io/controller-uid"  # the same for all pods of a Job, including replacements


def emit(
    tuning: Tuning,
    *,
    name: str = NAME,
    image: str = IMAGE,
    gpus: int | None = None,
    limit_s: int | None = None,
    labels: Mapping[str, str] | None = None,
    keeps_rendezvous: bool = False,
) -> Emitted:
    """Return the JobSet. `gpus` are per host and replace those of the tuning; `labels` are added, e.g. for Kueue.

    With `keeps_rendezvous`, torchrun's agents meet where the command says, else in the first pod.
    """
    tuning, notes_on_srun = without_srun(tuning)
    num_restarts = _num_restarts(tuning.keep)
    if num_restarts:
        tuning = msgspec.structs.replace(tuning, keep=(*tuning.keep, f"--machine-code={MACHINE_CODE}"))
    words = _command(tuning, name, keeps_rendezvous=keeps_rendezvous)
    container: dict[str, Value] = {"name": "train", "image": image, "command": words}
    container |= _environment(tuning, is_restarted=bool(num_restarts))
    container |= _resources(tuning, gpus)
    metadata: dict[str, Value] = {"name": name}
    if labels:
        metadata["labels"] = dict(labels)
    text = yaml_text(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": metadata,
            "spec": {
                "network": {"enableDNSHostnames": True},
                "replicatedJobs": [
                    {
                        "name": PODS,
                        "replicas": 1,
                        "template": {"spec": _job(container, num_nodes(tuning), num_restarts, limit_s)},
                    }
                ],
            },
        }
    )
    notes = [f"set `image`: {IMAGE} is a placeholder"] if image == IMAGE else []
    notes += [*notes_on_srun, *unplaced(tuning), *named_head(words)]
    if num_restarts and "--ledger" not in tuning.keep:
        notes.append(
            "a pod that replaces another starts from scratch without --ledger, a folder on a volume that outlives pods"
        )
    notes += config_note(
        tuning,
        f"the image must have flatout, and {CONFIG} in its working folder",
        with_flatout="the image must have flatout",
    )
    return Emitted(path="jobset.yaml", text=commented(tuning, has_command=True) + text, notes=tuple(notes))


def _environment(tuning: Tuning, *, is_restarted: bool) -> dict[str, Value]:
    """Return the `env` of the container, if it needs one."""
    if is_restarted:
        job = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{_JOB_LABEL}']"}}}
        return {"env": [{"name": Variable.JOB, **job}]}
    if tuning.changes.environment and not tuning.needs_run:
        variables = sorted(tuning.changes.environment.items())
        return {"env": [{"name": name, "value": value} for name, value in variables]}
    return {}


def _resources(tuning: Tuning, gpus: int | None) -> dict[str, Value]:
    """Return the GPUs of the container: those requested, else those of the tuning if they were NVIDIA's."""
    if gpus is None and tuning.machine.get("device", "").upper().startswith("NVIDIA"):
        gpus = _integer(tuning.machine.get("ranks_per_host") or tuning.machine.get("num_ranks"), 0)
    return {"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}


def _job(container: dict[str, Value], num_hosts: int, num_restarts: int, limit_s: int | None) -> dict[str, Value]:
    job: dict[str, Value] = {
        "parallelism": num_hosts,
        "completions": num_hosts,
        "completionMode": "Indexed",
        "backoffLimit": num_restarts,
    }
    if num_restarts:
        job["podFailurePolicy"] = _POLICY
    if limit_s is not None:
        job["activeDeadlineSeconds"] = limit_s
    job["template"] = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return job


# The first rule that fits counts. An end that fits no rule would count as the machine's fault.
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
    """Return the N of `--max-restarts N` among the options of `flatout run`; 0 without that option."""
    values = [keep[position + 1] for position, word in enumerate(keep[:-1]) if word == "--max-restarts"]
    return _integer(values[-1], 0) if values else 0


def first_pod(name: str) -> str:
    """Return the first pod's name in the JobSet's network."""
    return f"{name}-{PODS}-0-0.{name}"


def _command(tuning: Tuning, name: str, *, keeps_rendezvous: bool) -> list[str]:
    """Return the command. Kubernetes expands `$(NAME)`, so this is escaped in the user's arguments but not in ours."""
    words = tuple(word.replace("$(", "$$(") for word in tuned_command(tuning))
    if not needs_rendezvous(tuning):
        return list(words)
    if keeps_rendezvous:
        words = with_variables(with_own_rendezvous(words, num_nodes(tuning)))
        return list(with_launch_words(words, "torchrun", (_NODE_RANK,)) if is_static(words) else words)
    in_first_pod = (
        f"--nnodes={num_nodes(tuning)}",
        _NODE_RANK,
        f"--master-addr={first_pod(name)}",
        f"--master-port={PORT}",
    )
    return list(with_rendezvous(words, in_first_pod))


def _integer(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdigit() else default
