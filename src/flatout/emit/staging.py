"""Write what copies a data set to the disk of a node before a job starts there: a Slurm prolog, an init container.

In: the source, the folder on the node, and the name of the data set. Out: the texts. Both run `flatout data stage`,
which copies nothing if the copy is complete. After it, the prolog gives the node a feature, by which `flatout submit
--data-set NAME` prefers the node. A copy that fails never keeps the job from starting: it then reads the source.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from flatout.emit.yaml_text import Value, yaml_text
from flatout.records.staging import node_label, slurm_feature

_PROLOG = """\
#!/usr/bin/env bash
# Prolog for slurmd (slurm.conf: Prolog=PATH, PrologFlags=Alloc): copies the data set {name} to the disk of the node
# before a job starts, and then gives the node the feature {feature}, by which
# `flatout submit --data-set {name}` prefers it.
# It runs as root for each job in the partitions below; an empty list stands for all. It always ends with 0, because
# Slurm would drain the node otherwise. Features that scontrol sets last until slurmctld reads slurm.conf again: list
# {feature} there for nodes that keep the copy. BatchStartTimeout and PrologEpilogTimeout must leave time for the copy.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
partitions={partitions}
case " $partitions " in
  "  ") ;;
  *" ${{SLURM_JOB_PARTITION:-}} "*) ;;
  *) exit 0 ;;
esac
if ! {command} >&2; then
  echo "{name} was not copied to this node: the job reads its source" >&2
  exit 0
fi
node=${{SLURMD_NODENAME:-$(hostname -s)}}
shown=$(scontrol --oneliner show node "$node") || exit 0
with_feature() {{  # the features of this kind, and {feature}
  features=$(printf '%s\\n' "$shown" | sed -n "s/.* $1=\\([^ ]*\\).*/\\1/p")
  [ "$features" = "(null)" ] && features=
  case ",$features," in
    *,{feature},*) printf '%s' "$features" ;;
    *) printf '%s' "${{features:+$features,}}{feature}" ;;
  esac
}}
available=$(with_feature AvailableFeatures)
active=$(with_feature ActiveFeatures)
scontrol update NodeName="$node" AvailableFeatures="$available" ActiveFeatures="$active" >&2
exit 0
"""
_POD_HEADING = """\
# Parts of a pod template: an init container that copies the data set {name} to the disk of the node before the job's
# container starts, and volumes for both. The job's container mounts the volume `staged` at {folder}, read-only.
# A node that holds the copy gets its label with: kubectl label node NODE {label}=held
# `flatout submit --to kubernetes --data-set {name}` prefers nodes with this label.
"""


def slurm_prolog(name: str, source: Path, folder: Path, *, partitions: tuple[str, ...] = ()) -> str:
    """Return the prolog script."""
    return _PROLOG.format(
        name=name,
        feature=slurm_feature(name),
        partitions=shlex.quote(" ".join(partitions)),
        command=shlex.join(["flatout", "data", "stage", str(source), str(folder)]),
    )


def init_container(name: str, source: Path, folder: Path, *, image: str, claim: str) -> str:
    """Return the parts of a pod template; `claim` is the volume claim whose root is mounted at the source."""
    script = (
        f"{shlex.join(['flatout', 'data', 'stage', str(source), str(folder)])}"
        f" || echo {shlex.quote(name + ' was not copied to this node: the job reads its source')} >&2"
    )
    container: Value = {
        "name": "stage-data",
        "image": image,
        "command": ["sh", "-c", script],
        "volumeMounts": [
            {"name": "source", "mountPath": str(source), "readOnly": True},
            {"name": "staged", "mountPath": str(folder)},
        ],
    }
    volumes: Value = [
        {"name": "source", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}},
        {"name": "staged", "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"}},
    ]
    heading = _POD_HEADING.format(name=name, folder=folder, label=node_label(name))
    return heading + yaml_text({"initContainers": [container], "volumes": volumes})
