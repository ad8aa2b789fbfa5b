"""Hold Flatout's Kubernetes manifests against the projects' own definitions, as a server with strict validation would.

    for crd in clusterqueues.kueue.x-k8s.io jobsets.jobset.x-k8s.io ...; do kubectl get crd $crd -o yaml; done
    python benchmarks/kubernetes_schemas.py CRDS [--write benchmarks/results/kubernetes_schemas.json]

CRDS is a folder with the CustomResourceDefinitions of Kueue, JobSet, Kubeflow Trainer and the MPI operator as YAML;
each project has them in its repository. Every field that a definition does not list is refused. The definitions' rules
in CEL are evaluated if `cel-python` is installed; those that it cannot evaluate are listed, and so are all of them
without it. The projects' webhooks are not evaluated. It also reports the fields of
`tests/schedule/live/kube_schemas.py`, re-typed from these definitions, that a definition does not have.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from kubernetes_rules import Outcome, evaluated

ROOT = Path(__file__).parents[1]
NODES = ROOT / "tests/data/readers/kubernetes_nodes.json"
LAUNCHERS = (
    ("torchrun", "--nproc-per-node", "8", "t.py"),
    ("accelerate", "launch", "t.py"),
    ("deepspeed", "t.py"),
    ("mpirun", "python", "t.py"),
    ("python", "t.py", "yes", "1e3", "\U0001f680", "a: b"),
)
OPTIONS = (
    ("--gpus", "8"),
    ("--gpus", "8", "--queue", "q", "--kube-nodes", str(NODES), "--network", "rdma/hca", "--gpu-memory", "80"),
    ("--gpus", "1", "--gpu-type", "h100", "--time", "1h", "--memory", "64Gi", "--shm", "8Gi"),
    ("--gpus", "8", "--max-restarts", "3", "--ledger", "books", "--topology", "preferred:cloud.example.com/rack"),
)
Definitions = dict[tuple[str, str], dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("crds", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    definitions, served = read_definitions(options.crds)
    with tempfile.TemporaryDirectory() as folder:
        objects = list(written(Path(folder)))
    problems = [problem for each in objects for problem in refused(each, definitions)]
    outcomes = list(outcomes_of_rules(objects, definitions))
    broken = sorted({problem for outcome in outcomes for problem in outcome.broken})
    result = {
        "definitions": [f"{version} {kind}" for version, kind in sorted(served)],
        "num_objects": len(objects),
        "kinds": sorted({f"{each['apiVersion']} {each['kind']}" for each in objects}),
        "problems": sorted(set(problems)),
        "rules_held": sum(outcome.num_held for outcome in outcomes),
        "rules_broken": broken,
        "rules_not_evaluated": sorted({text for outcome in outcomes for text in outcome.not_evaluated}),
        "retyped_fields_that_do_not_exist": sorted(set(retyped_excess(definitions))),
    }
    print(json.dumps(result, indent=1))
    if options.write:
        options.write.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(bool(result["problems"] or broken or result["retyped_fields_that_do_not_exist"]))


def read_definitions(folder: Path) -> tuple[Definitions, set[tuple[str, str]]]:
    """Return the schemas by version and kind, and which of them are served."""
    definitions: Definitions = {}
    served = set()
    for path in sorted(folder.glob("*.y*ml")):
        for document in yaml.safe_load_all(path.read_text()):
            if not document or document.get("kind") != "CustomResourceDefinition":
                continue
            spec = document["spec"]
            for version in spec["versions"]:
                key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                definitions[key] = version["schema"]["openAPIV3Schema"]
                if version["served"]:
                    served.add(key)
    return definitions, served


def written(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects that Flatout writes for a set of jobs and teams."""
    for number, options in enumerate(OPTIONS):
        for place, command in enumerate(LAUNCHERS):
            for nodes in ("1", "2"):
                out = folder / f"submit-{number}-{place}-{nodes}"
                words = ["submit", "--to", "kubernetes", "--image", "i", "--name", "j", "--nodes", nodes, *options]
                yield from documents(out, [*words, "--out", str(out), "--", *command])
    teams = (ROOT / "tests/data/readers/teams.toml").read_text()
    for api in ("v1beta2", "v1beta1"):
        path = folder / f"teams-{api}.toml"
        path.write_text(teams.replace("[cluster]", f'[cluster]\nkueue_api = "{api}"', 1))
        out = folder / f"teams-{api}"
        yield from documents(out, ["schedule", "kubernetes", str(path), "--out", str(out)])


def documents(out: Path, words: list[str]) -> Iterator[dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "flatout", *words]
    subprocess.run(command, check=True, env=environment, cwd=out.parent, capture_output=True)
    for path in sorted(out.glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text())


def strict(schema: Any) -> Any:
    """Return the schema with every field that it does not list refused."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(value) for name, value in schema.items()}
    if made.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    is_closed = isinstance(made.get("properties"), dict) and made.get("type") == "object"
    if is_closed and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def refused(manifest: dict[str, Any], definitions: Definitions) -> Iterator[str]:
    if manifest["apiVersion"] == "v1":
        return  # Kubernetes' own kinds have no definition in the cluster
    key = (manifest["apiVersion"], manifest["kind"])
    if key not in definitions:
        yield f"{key}: no definition"
        return
    schema = strict(definitions[key])
    schema["properties"]["metadata"] = {"type": "object"}
    for error in jsonschema.Draft7Validator(schema).iter_errors(manifest):
        yield f"{manifest['kind']} {'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"


def outcomes_of_rules(objects: list[dict[str, Any]], definitions: Definitions) -> Iterator[Outcome]:
    """Yield what the rules in CEL say of each object that has a definition."""
    for each in objects:
        schema = definitions.get((each["apiVersion"], each["kind"]))
        if schema is not None:
            yield evaluated(schema, each)


def retyped_excess(definitions: Definitions) -> Iterator[str]:
    """Yield the fields of the tests' own schemas that the projects' definitions do not have."""
    sys.path.insert(0, str(ROOT))
    from tests.schedule.live.kube_schemas import SPECS

    for (version, kind), spec in SPECS.items():
        if (version, kind) in definitions and spec["properties"]:
            theirs = definitions[version, kind]["properties"]["spec"]
            yield from excess(spec, theirs, f"{version} {kind}")


def excess(ours: dict[str, Any], theirs: dict[str, Any], at: str) -> Iterator[str]:
    if "items" in ours and "items" in theirs:
        yield from excess(ours["items"], theirs["items"], at)
    for name, schema in ours.get("properties", {}).items():
        other = theirs.get("properties", {}).get(name) or theirs.get("additionalProperties")
        if isinstance(other, dict):
            yield from excess(schema, other, f"{at}.{name}")
        else:
            yield f"{at}.{name}"
    for value in ours.get("enum", ()):
        if value not in theirs.get("enum", [value]):
            yield f"{at}: {value}"


if __name__ == "__main__":
    main()
