"""Write a tuned server for other tools: a script, Kubernetes and KServe arguments, Triton's configuration.

In: a `ServingTuning` with adopted changes. Out: texts of files. The image is the user's: a placeholder stands for it.
"""

from __future__ import annotations

import os
import shlex

from flatout.emit.yaml_text import Value, yaml_text
from flatout.records.serving import ServingTuning
from flatout.records.tuning import Emitted
from flatout.secrets import MASK

NAME = "flatout-tuned"
IMAGE = "REPLACE-WITH-YOUR-IMAGE"
EMITTED = ("launch.sh", "kubernetes.yaml", "kserve.yaml", "config.pbtxt")
PORT_OPTIONS = ("--port", "--http-port")


def emit_serving(tuning: ServingTuning) -> list[Emitted]:
    """Return the files for a tuning that adopted something."""
    files = [_script(tuning), _kubernetes(tuning), _kserve(tuning)]
    lines = [line for change in tuning.adopted for line in change.model_config]
    if lines:
        text = "# Add these lines to the model's config.pbtxt.\n" + "\n".join(lines) + "\n"
        files.append(Emitted(path="config.pbtxt", text=text, notes=()))
    return files


def _heading(tuning: ServingTuning) -> str:
    changes = ", ".join(change.name for change in tuning.adopted)
    return f"# Written by `flatout tune --serve`: {changes}\n"


def _known(tuning: ServingTuning) -> dict[str, str]:
    """Return the variables whose values are not masked."""
    return {name: value for name, value in tuning.environment.items() if MASK not in value}


def _masked_notes(tuning: ServingTuning) -> tuple[str, ...]:
    """Return notes on what stands for secrets, which the user fills in."""
    hidden = [name for name in tuning.environment if name not in _known(tuning)]
    notes = [f"set {name}: its value looks like a secret and is not written" for name in hidden]
    if any(MASK in word for word in tuning.launch):
        notes.append(f"values that look like secrets are {MASK} in the written command: replace each of them")
    return tuple(notes)


def _script(tuning: ServingTuning) -> Emitted:
    exports = [f"export {name}={shlex.quote(value)}\n" for name, value in _known(tuning).items()]
    text = f"#!/bin/sh\n{_heading(tuning)}{''.join(exports)}exec {shlex.join(tuning.launch)}\n"
    return Emitted(path="launch.sh", text=text, notes=_masked_notes(tuning))


def _container(tuning: ServingTuning, name: str) -> dict[str, Value]:
    """Return a container that runs the tuned command; the program is its command, the rest are its arguments."""
    program, *arguments = tuning.launch
    container: dict[str, Value] = {
        "name": name,
        "image": IMAGE,
        "command": [os.path.basename(program)],
        "args": arguments,
    }
    if _known(tuning):
        container["env"] = [{"name": key, "value": value} for key, value in _known(tuning).items()]
    port = _port(tuning)
    if port is not None:
        container["ports"] = [{"containerPort": port}]
    return container


def _port(tuning: ServingTuning) -> int | None:
    for option in PORT_OPTIONS:
        for word, following in zip(tuning.launch, (*tuning.launch[1:], ""), strict=True):
            text = word.partition("=")[2] if word.startswith(f"{option}=") else following if word == option else ""
            if text.isdigit():
                return int(text)
    return None


def _kubernetes(tuning: ServingTuning) -> Emitted:
    labels: dict[str, Value] = {"app": NAME}
    deployment: dict[str, Value] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [_container(tuning, "server")]}},
        },
    }
    notes = (f"set `image`: {IMAGE} is a placeholder", "add the GPUs that the server needs under `resources`")
    return Emitted(path="kubernetes.yaml", text=_heading(tuning) + yaml_text(deployment), notes=notes)


def _kserve(tuning: ServingTuning) -> Emitted:
    service: dict[str, Value] = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": NAME},
        "spec": {"predictor": {"containers": [_container(tuning, "kserve-container")]}},
    }
    notes = (f"set `image`: {IMAGE} is a placeholder", "add the GPUs that the server needs under `resources`")
    return Emitted(path="kserve.yaml", text=_heading(tuning) + yaml_text(service), notes=notes)
