"""Write a job for Kubernetes that runs the user's command, one pod per host: a JobSet, or an MPIJob for mpirun.

On several hosts, the pods meet in the first one, by its name in the JobSet. The user supplies the image and the number
of GPUs: the image is a placeholder. A command that needs patches expects flatout and `tuned.toml` in the image's
working folder.

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
from flatout.emit.job_set import pod_objects
from flatout.emit.pod_job import CONTAINER, IMAGE, PodJob, escaped, host_name
from flatout.emit.pod_launch import INDEX
from flatout.emit.rendezvous import is_static, needs_rendezvous, num_nodes, with_own_rendezvous, with_variables
from flatout.emit.yaml_text import Value
from flatout.inside.protocol import Variable
from flatout.records.pods import PodNeeds
from flatout.records.tuning import Emitted, Tuning

NAME = "flatout-tuned"
MACHINE_CODE = 75  # EX_TEMPFAIL of sysexits.h
_JOB_LABEL = "batch.kubernetes.io/controller-uid"  # the same for all pods of a Job, including replacements


def emit(
    tuning: Tuning,
    *,
    name: str = NAME,
    image: str = IMAGE,
    needs: PodNeeds | None = None,
    limit_s: int | None = None,
    labels: Mapping[str, str] | None = None,
    keeps_rendezvous: bool = False,
) -> Emitted:
    """Return the manifest. `needs` replace those of the tuning; `labels` are added, e.g. for Kueue.

    With `keeps_rendezvous`, torchrun's agents meet where the command says, else in the first pod.
    """
    tuning, notes_on_srun = without_srun(tuning)
    num_restarts = _num_restarts(tuning.keep)
    if num_restarts:
        tuning = msgspec.structs.replace(tuning, keep=(*tuning.keep, f"--machine-code={MACHINE_CODE}"))
    keeps_rendezvous = keeps_rendezvous and needs_rendezvous(tuning)
    words = escaped(tuned_command(tuning))
    if keeps_rendezvous:
        words = _with_own_rendezvous(words, num_nodes(tuning))
    job = PodJob(
        name=name,
        image=image,
        words=words,
        num_nodes=num_nodes(tuning),
        needs=needs or PodNeeds(num_gpus=tuned_gpus(tuning)),
        labels=labels or {},
        variables=_variables(tuning, is_restarted=bool(num_restarts)),
        keeps_rendezvous=keeps_rendezvous,
        backoff_limit=num_restarts,
        pod_failure_policy=_POLICY if num_restarts else None,
        limit_s=limit_s,
    )
    written = pod_objects(job)
    notes = [f"set `image`: {IMAGE} is a placeholder"] if image == IMAGE else []
    notes += [*notes_on_srun, *unplaced(tuning), *named_head(words), *written.notes]
    if num_restarts and "--ledger" not in tuning.keep:
        notes.append(
            "a pod that replaces another starts from scratch without --ledger, a folder on a volume that outlives pods"
        )
    notes += config_note(
        tuning,
        f"the image must have flatout, and {CONFIG} in its working folder",
        with_flatout="the image must have flatout",
    )
    text = commented(tuning, has_command=True) + written.text
    return Emitted(path=f"{written.kind.lower()}.yaml", text=text, notes=tuple(notes))


def first_pod(name: str) -> str:
    """Return the first pod's name in the JobSet's network."""
    return host_name(name, 0)


def _variables(tuning: Tuning, *, is_restarted: bool) -> tuple[Value, ...]:
    """Return the entries of the container's `env`."""
    if is_restarted:
        return ({"name": Variable.JOB, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{_JOB_LABEL}']"}}},)
    if tuning.changes.environment and not tuning.needs_run:
        variables = sorted(tuning.changes.environment.items())
        return tuple({"name": name, "value": value} for name, value in variables)
    return ()


def tuned_gpus(tuning: Tuning) -> int:
    """Return the GPUs per host that the job had when it was tuned, if they were NVIDIA's; else 0."""
    if not tuning.machine.get("device", "").upper().startswith("NVIDIA"):
        return 0
    return _integer(tuning.machine.get("ranks_per_host") or tuning.machine.get("num_ranks"), 0)


# The first rule that fits counts. An end that fits no rule would count as the machine's fault.
_POLICY: dict[str, Value] = {
    "rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": [MACHINE_CODE]},
        },
    ]
}


def _num_restarts(keep: Sequence[str]) -> int:
    """Return the N of `--max-restarts N` among the options of `flatout run`; 0 without that option."""
    values = [keep[position + 1] for position, word in enumerate(keep[:-1]) if word == "--max-restarts"]
    return _integer(values[-1], 0) if values else 0


def _with_own_rendezvous(words: tuple[str, ...], num_nodes: int) -> tuple[str, ...]:
    """Return the command with the user's own rendezvous, and each agent's rank where the agents do not find it out."""
    words = with_variables(with_own_rendezvous(words, num_nodes))
    return with_launch_words(words, "torchrun", (f"--node-rank={INDEX}",)) if is_static(words) else words


def _integer(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() else default
