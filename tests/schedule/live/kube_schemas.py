"""What the API servers of Kueue, JobSet and Kubeflow Trainer take, re-typed from the projects' definitions of 2026-08.

As OpenAPI 3 writes it, and no more of it than is needed for what Flatout writes: a field that is not listed is refused.
The rules between fields are in `RULES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

Schema = dict[str, Any]
_DNS = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_LABEL = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
_QUANTITY = r"^[0-9]+(\.[0-9]*)?([KMGTPE]i|[numkMGTPE])?$"


def obj(required: str = "", **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required.split()}


def arr(items: Schema, most: int = 10**6, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "maxItems": most, "minItems": least}


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
NAME: Schema = {"type": "string", "pattern": _DNS, "maxLength": 253}
QUANTITY: Schema = {"x-kubernetes-int-or-string": True, "pattern": _QUANTITY}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
METADATA = obj("name", name=NAME, namespace=NAME, labels=TEXTS, annotations=TEXTS)
TOLERATION = obj("", key=TEXT, operator=one_of("Exists", "Equal"), value=TEXT, effect=TEXT)
RESOURCES = obj(
    "",
    requests={"type": "object", "additionalProperties": QUANTITY},
    limits={"type": "object", "additionalProperties": QUANTITY},
)
QUOTA = obj("name nominalQuota", name=TEXT, nominalQuota=QUANTITY, borrowingLimit=QUANTITY, lendingLimit=QUANTITY)
GROUPS = arr(
    obj(
        "coveredResources flavors",
        coveredResources=arr(TEXT, 64, 1),
        flavors=arr(obj("name resources", name=NAME, resources=arr(QUOTA, 64, 1)), 64, 1),
    ),
    16,
)
CONTAINER = obj("name", name=TEXT, image=TEXT, command=arr(TEXT), args=arr(TEXT), resources=RESOURCES)
POD = obj(
    "spec",
    metadata=obj("", labels=TEXTS, annotations=TEXTS),
    spec=obj("containers", restartPolicy=one_of("Never", "OnFailure"), containers=arr(CONTAINER, least=1)),
)
BATCH_JOB = obj(
    "",
    metadata=obj("", labels=TEXTS, annotations=TEXTS),
    spec=obj(
        "template",
        parallelism=NUMBER,
        completions=NUMBER,
        completionMode=one_of("Indexed", "NonIndexed"),
        backoffLimit=NUMBER,
        template=POD,
    ),
)
JOBSET_SPEC = obj(
    "",
    suspend=FLAG,
    network=obj("", enableDNSHostnames=FLAG, subdomain=TEXT, publishNotReadyAddresses=FLAG),
    failurePolicy=obj("", maxRestarts=NUMBER, restartStrategy=one_of("Recreate", "BlockingRecreate", "InPlaceRestart")),
    replicatedJobs=arr(obj("name template", name=TEXT, replicas=NUMBER, groupName=TEXT, template=BATCH_JOB)),
)
SPECS: dict[tuple[str, str], Schema] = {
    ("kueue.x-k8s.io/v1beta2", "Topology"): obj("levels", levels=arr(obj("nodeLabel", nodeLabel=TEXT), 16, 1)),
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): obj(
        "", nodeLabels=TEXTS, tolerations=arr(TOLERATION, 8), topologyName=NAME
    ),
    ("kueue.x-k8s.io/v1beta2", "Cohort"): obj(
        "", parentName=NAME, resourceGroups=GROUPS, fairSharing=obj("", weight=QUANTITY)
    ),
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"): obj(
        "",
        cohortName=NAME,
        namespaceSelector=obj("", matchLabels=TEXTS),
        queueingStrategy=one_of("StrictFIFO", "BestEffortFIFO"),
        fairSharing=obj("", weight=QUANTITY),
        preemption=obj(
            "",
            reclaimWithinCohort=one_of("Never", "LowerPriority", "Any"),
            withinClusterQueue=one_of("Never", "LowerPriority", "LowerOrNewerEqualPriority"),
            borrowWithinCohort=obj("", policy=one_of("Never", "LowerPriority"), maxPriorityThreshold=NUMBER),
        ),
        flavorFungibility=obj(
            "",
            whenCanBorrow=one_of("MayStopSearch", "TryNextFlavor"),
            whenCanPreempt=one_of("MayStopSearch", "TryNextFlavor"),
        ),
        resourceGroups=GROUPS,
    ),
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): obj("", clusterQueue=NAME, fairSharing=obj("", weight=QUANTITY)),
    ("kueue.x-k8s.io/v1beta2", "WorkloadPriorityClass"): obj(),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): JOBSET_SPEC,
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): obj(
        "runtimeRef",
        suspend=FLAG,
        runtimeRef=obj("name", apiGroup=TEXT, kind=one_of("ClusterTrainingRuntime", "TrainingRuntime"), name=NAME),
        trainer=obj(
            "",
            image=TEXT,
            command=arr(TEXT, 128),
            args=arr(TEXT, 128),
            numNodes=NUMBER,
            numProcPerNode=NUMBER,
            resourcesPerNode=RESOURCES,
        ),
    ),
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): obj(
        "template",
        mlPolicy=obj("", numNodes=NUMBER, torch=obj()),
        template=obj("", metadata=obj("", labels=TEXTS), spec=JOBSET_SPEC),
    ),
}
NAMESPACED = {"LocalQueue", "JobSet", "TrainJob"}


def _covers_all(spec: dict[str, Any]) -> bool:
    return all(
        [resource["name"] for resource in flavor["resources"]] == group["coveredResources"]
        for group in spec["resourceGroups"]
        for flavor in group["flavors"]
    )


# Kind -> the projects' own validation rules between fields, and what their webhooks check.
RULES: dict[str, dict[str, Callable[[dict[str, Any]], bool]]] = {
    "ClusterQueue": {
        "flavors have the covered resources, in their order": _covers_all,
        "a borrowing limit needs a cohort": lambda spec: "cohortName" in spec or "borrowingLimit" not in str(spec),
    },
    "Cohort": {"flavors have the covered resources, in their order": _covers_all},
    "ResourceFlavor": {
        "a topology needs labels of nodes": lambda spec: "topologyName" not in spec or bool(spec.get("nodeLabels")),
        "a toleration of every taint has Exists": lambda spec: all(
            "key" in each or each["operator"] == "Exists" for each in spec.get("tolerations", ())
        ),
    },
    "Topology": {
        "the host is the narrowest level, and there only": lambda spec: (
            [level["nodeLabel"] == "kubernetes.io/hostname" for level in spec["levels"]]
            == [False] * (len(spec["levels"]) - 1) + [True]
        ),
        "no level is there twice": lambda spec: len({str(level) for level in spec["levels"]}) == len(spec["levels"]),
        "levels are labels": lambda spec: all(re.match(_LABEL, level["nodeLabel"]) for level in spec["levels"]),
    },
}


def problems(manifest: dict[str, Any], specs: dict[tuple[str, str], Schema] = SPECS) -> list[str]:
    """What an API server would refuse of one object."""
    kind = manifest["kind"]
    found = list(_against(manifest["metadata"], METADATA, "metadata"))
    if (kind in NAMESPACED) != ("namespace" in manifest["metadata"]):
        found.append("metadata: a namespace is for namespaced kinds")
    if kind == "WorkloadPriorityClass":
        rest = {name: value for name, value in manifest.items() if name not in ("apiVersion", "kind", "metadata")}
        return [*found, *_against(rest, obj("value", value=NUMBER, description=TEXT), kind)]
    if kind == "TrainJob" and not re.match(r"^[a-z]([-a-z0-9]*[a-z0-9])?$", manifest["metadata"]["name"]):
        found.append("metadata: a TrainJob's name begins with a letter")
    found.extend(_against(manifest["spec"], specs[manifest["apiVersion"], kind], "spec"))
    return [*found, *(rule for rule, holds in RULES.get(kind, {}).items() if not holds(manifest["spec"]))]


def _against(value: Any, schema: Schema, at: str) -> Iterator[str]:
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str) or not re.match(schema.get("pattern", ""), str(value)):
            yield f"{at}: {value!r} is no quantity"
        return
    types = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    wanted = types[schema["type"]]
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        yield f"{at}: {value!r} is no {schema['type']}"
    elif wanted is dict:
        properties, more = schema.get("properties", {}), schema.get("additionalProperties")
        yield from (f"{at}: no {name}" for name in schema.get("required", ()) if name not in value)
        for name, each in value.items():
            if name in properties:
                yield from _against(each, properties[name], f"{at}.{name}")
            elif more:
                yield from _against(each, more, f"{at}.{name}")
            elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{at}: unknown field {name}"
    elif wanted is list:
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**6):
            yield f"{at}: {len(value)} items"
        for number, each in enumerate(value):
            yield from _against(each, schema["items"], f"{at}[{number}]")
    elif wanted is str:
        if "enum" in schema and value not in schema["enum"]:
            yield f"{at}: {value!r} is none of {schema['enum']}"
        if "pattern" in schema and not re.match(schema["pattern"], value):
            yield f"{at}: {value!r} is not as it must be"
        if len(value) > schema.get("maxLength", 10**6):
            yield f"{at}: {value!r} is too long"
