"""What the API servers of Kueue, JobSet, Kubeflow Trainer and the MPI operator take, re-typed from their definitions.

As JSON schemas, and no more of them than is needed for what Flatout writes: a field that is not listed is refused, as
by `kubectl apply --validate=strict`. The rules between fields are in `RULES`. `benchmarks/kubernetes_schemas.py` holds
the manifests against the projects' own files: Kueue 0.20 (2026-08-22), JobSet 0.13 (2026-08-18), Trainer 2.3
(2026-08-21), MPI operator 0.8 (2026-07-02).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema

Schema = dict[str, Any]
_DNS = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_LABEL = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
_QUANTITY = r"^[0-9]+(\.[0-9]*)?([KMGTPE]i|[numkMGTPE])?$"


def obj(required: str = "", **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def arr(items: Schema, most: int = 10**6, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "maxItems": most, "minItems": least}


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
NAME: Schema = {"type": "string", "pattern": _DNS, "maxLength": 253}
QUANTITY: Schema = {"type": ["integer", "string"], "pattern": _QUANTITY}
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
FIELD = obj("fieldRef", fieldRef=obj("fieldPath", fieldPath=TEXT))
VARIABLES = arr(obj("name", name=TEXT, value=TEXT, valueFrom=FIELD))
CONTAINER = obj(
    "name",
    name=TEXT,
    image=TEXT,
    command=arr(TEXT),
    args=arr(TEXT),
    env=VARIABLES,
    resources=RESOURCES,
    securityContext=obj("", capabilities=obj("", add=arr(TEXT), drop=arr(TEXT))),
    volumeMounts=arr(obj("name mountPath", name=TEXT, mountPath=TEXT, readOnly=FLAG)),
)
VOLUME = obj(
    "name",
    name=TEXT,
    emptyDir=obj("", medium=TEXT, sizeLimit=QUANTITY),
    configMap=obj("", name=TEXT),
)
EXPRESSION = obj(
    "key operator",
    key=TEXT,
    operator=one_of("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
    values=arr(TEXT),
)
TERMS = obj("nodeSelectorTerms", nodeSelectorTerms=arr(obj("", matchExpressions=arr(EXPRESSION)), least=1))
PREFERRED = obj("weight preference", weight=NUMBER, preference=obj("", matchExpressions=arr(EXPRESSION)))
AFFINITY = obj(
    "",
    nodeAffinity=obj(
        "",
        requiredDuringSchedulingIgnoredDuringExecution=TERMS,
        preferredDuringSchedulingIgnoredDuringExecution=arr(PREFERRED),
    ),
)
POD = obj(
    "",
    metadata=obj("", labels=TEXTS, annotations=TEXTS),
    spec=obj(
        "containers",
        restartPolicy=one_of("Never", "OnFailure"),
        nodeSelector=TEXTS,
        affinity=AFFINITY,
        tolerations=arr(TOLERATION),
        containers=arr(CONTAINER, least=1),
        volumes=arr(VOLUME),
    ),
)
EXIT_CODES = obj("operator values", containerName=TEXT, operator=one_of("In", "NotIn"), values=arr(NUMBER, 255, 1))
FAILURE_RULE = obj(
    "action",
    action=one_of("FailJob", "FailIndex", "Ignore", "Count"),
    onExitCodes=EXIT_CODES,
    onPodConditions=arr(obj("type", type=TEXT, status=TEXT), 20),
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
        activeDeadlineSeconds=NUMBER,
        podFailurePolicy=obj("rules", rules=arr(FAILURE_RULE, 20)),
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
REPLICAS = obj("", replicas=NUMBER, restartPolicy=one_of("Never", "OnFailure"), template=POD)
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
            env=VARIABLES,
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
    ("kubeflow.org/v2beta1", "MPIJob"): obj(
        "mpiReplicaSpecs",
        slotsPerWorker=NUMBER,
        mpiImplementation=one_of("OpenMPI", "Intel", "MPICH"),
        sshAuthMountPath=TEXT,
        runLauncherAsWorker=FLAG,
        launcherCreationPolicy=one_of("AtStartup", "WaitForWorkersReady"),
        runPolicy=obj(
            "",
            cleanPodPolicy=one_of("None", "Running", "All"),
            backoffLimit=NUMBER,
            activeDeadlineSeconds=NUMBER,
            suspend=FLAG,
        ),
        mpiReplicaSpecs=obj("Launcher", Launcher=REPLICAS, Worker=REPLICAS),
    ),
}


def _in_v1beta1(kind: str) -> Schema:
    """Return the older version of a kind: the cohort and the choices of flavors had other names."""
    spec = copy.deepcopy(SPECS["kueue.x-k8s.io/v1beta2", kind])
    properties = spec["properties"]
    if kind == "ClusterQueue":
        properties["cohort"] = properties.pop("cohortName")
        choices = properties["flavorFungibility"]["properties"]
        choices["whenCanBorrow"] = one_of("Borrow", "TryNextFlavor")
        choices["whenCanPreempt"] = one_of("Preempt", "TryNextFlavor")
    return spec


SPECS |= {
    ("kueue.x-k8s.io/v1beta1", kind): _in_v1beta1(kind)
    for version, kind in list(SPECS)
    if version == "kueue.x-k8s.io/v1beta2"
}
NAMESPACED = {"LocalQueue", "JobSet", "TrainJob", "MPIJob", "ConfigMap"}


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
        "a borrowing limit needs a cohort": lambda spec: (
            "cohortName" in spec or "cohort" in spec or "borrowingLimit" not in str(spec)
        ),
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


def _pods(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the pod specs within an object."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for each in value.values():
            yield from _pods(each)
    elif isinstance(value, list):
        for each in value:
            yield from _pods(each)


def _pod_problems(pod: dict[str, Any]) -> Iterator[str]:
    """What the server itself refuses of a pod beyond its schema."""
    volumes = [volume["name"] for volume in pod.get("volumes", [])]
    if len(set(volumes)) < len(volumes):
        yield "pod: two volumes have one name"
    for container in pod["containers"]:
        yield from (
            f"pod: no volume {each['name']}"
            for each in container.get("volumeMounts", [])
            if each["name"] not in volumes
        )
        resources = container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        for name, number in requests.items():
            if "/" in name and limits.get(name) != number:
                yield f"pod: {name} must be requested as it is limited"
        for variable in container.get("env", []):
            if ("value" in variable) == ("valueFrom" in variable):
                yield f"pod: {variable['name']} must have a value or a source"


def problems(
    manifest: dict[str, Any], specs: dict[tuple[str, str], Schema] = SPECS, *, has_namespace: bool = True
) -> list[str]:
    """What an API server would refuse of one object. `has_namespace`: namespaced objects name theirs."""
    kind = manifest["kind"]
    found = list(_against(manifest["metadata"], METADATA, "metadata"))
    if (kind in NAMESPACED and has_namespace) != ("namespace" in manifest["metadata"]):
        found.append("metadata: a namespace is for namespaced kinds")
    if kind == "ConfigMap":
        rest = {name: value for name, value in manifest.items() if name not in ("apiVersion", "kind", "metadata")}
        return [*found, *_against(rest, obj("data", data=TEXTS), kind)]
    found.extend(problem for pod in _pods(manifest.get("spec")) for problem in _pod_problems(pod))
    if kind in ("JobSet", "TrainJob"):
        found.extend(_name_problems(manifest))
    if kind == "WorkloadPriorityClass":
        rest = {name: value for name, value in manifest.items() if name not in ("apiVersion", "kind", "metadata")}
        return [*found, *_against(rest, obj("value", value=NUMBER, description=TEXT), kind)]
    if kind == "TrainJob" and not re.match(r"^[a-z]([-a-z0-9]*[a-z0-9])?$", manifest["metadata"]["name"]):
        found.append("metadata: a TrainJob's name begins with a letter")
    found.extend(_against(manifest["spec"], specs[manifest["apiVersion"], kind], "spec"))
    return [*found, *(rule for rule, holds in RULES.get(kind, {}).items() if not holds(manifest["spec"]))]


def _name_problems(manifest: dict[str, Any]) -> Iterator[str]:
    """What JobSet's webhook says of the longest name of a pod: NAME-JOB-0-INDEX and five random characters."""
    for job in manifest["spec"].get("replicatedJobs", []):
        last = job.get("template", {}).get("spec", {}).get("completions", 1) - 1
        longest = f"{manifest['metadata']['name']}-{job['name']}-{job['replicas'] - 1}-{last}-abcde"
        if len(longest) > 63:
            yield f"metadata: the pod name {longest} has more than 63 characters"


def _against(value: Any, schema: Schema, at: str) -> Iterator[str]:
    for error in jsonschema.Draft7Validator(schema).iter_errors(value):
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
        yield f"{at}{path}: {error.message}"
