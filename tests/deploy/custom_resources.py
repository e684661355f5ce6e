"""Schemas of the custom resources in deploy/kubernetes: of the fields that these use.

KEDA's published types, which a test reads from a package, allow keys that do not exist, and say
nothing of a trigger's metadata; KubeRay's are in no package. So these tables are of names, types
and bounds as their API types say:
ScaledObject: github.com/kedacore/keda, apis/keda/v1alpha1/scaledobject_types.go and
https://keda.sh/docs/2.16/scalers/prometheus. RayCluster: github.com/ray-project/kuberay,
ray-operator/apis/ray/v1/raycluster_types.go.
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER_AS_TEXT: Schema = {"type": "string", "pattern": r"^\d+(\.\d+)?$"}
FREE: Schema = {"type": "object"}  # checked elsewhere, as part of a Pod


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def listed(items: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": items}


def closed(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """An object with no other keys, as the API server would drop them."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


METADATA = closed(("name",), name=TEXT, namespace=TEXT, labels=TEXTS, annotations=TEXTS)

PROMETHEUS = closed(
    ("serverAddress", "query", "threshold"),
    serverAddress={"type": "string", "pattern": "^https?://"},
    query=TEXT,
    threshold=NUMBER_AS_TEXT,
    activationThreshold=NUMBER_AS_TEXT,
    ignoreNullValues=one_of("true", "false"),
)
SCALING_RULES = closed(stabilizationWindowSeconds={**COUNT, "maximum": 3600})

SCALED_OBJECT = closed(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion=one_of("keda.sh/v1alpha1"),
    kind=one_of("ScaledObject"),
    metadata=METADATA,
    spec=closed(
        ("scaleTargetRef", "triggers"),
        scaleTargetRef=closed(("name",), apiVersion=TEXT, kind=TEXT, name=TEXT),
        minReplicaCount=COUNT,
        maxReplicaCount={"type": "integer", "minimum": 1},
        pollingInterval=COUNT,
        cooldownPeriod=COUNT,
        fallback=closed(
            ("failureThreshold", "replicas"),
            failureThreshold=COUNT,
            replicas=COUNT,
            behavior=one_of(
                "static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"
            ),
        ),
        advanced=closed(
            horizontalPodAutoscalerConfig=closed(
                behavior=closed(scaleUp=SCALING_RULES, scaleDown=SCALING_RULES)
            )
        ),
        triggers=listed(
            closed(
                ("type", "metadata"),
                type=one_of("prometheus"),
                metricType=one_of("AverageValue", "Value"),
                metadata=PROMETHEUS,
            )
        ),
    ),
)

RAY_CLUSTER = closed(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion=one_of("ray.io/v1"),
    kind=one_of("RayCluster"),
    metadata=METADATA,
    spec=closed(
        ("headGroupSpec",),
        rayVersion=TEXT,
        enableInTreeAutoscaling={"type": "boolean"},
        autoscalerOptions=closed(
            version=one_of("v1", "v2"), idleTimeoutSeconds=COUNT, securityContext=FREE
        ),
        headGroupSpec=closed(("rayStartParams", "template"), rayStartParams=TEXTS, template=FREE),
        workerGroupSpecs=listed(
            closed(
                ("groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"),
                groupName=TEXT,
                replicas=COUNT,
                minReplicas=COUNT,
                maxReplicas=COUNT,
                rayStartParams=TEXTS,
                template=FREE,
            )
        ),
    ),
)
