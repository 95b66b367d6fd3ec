"""What runs the model: the model itself, the engine, and the two roles."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field, WithJsonSchema

from disagg_operator.api.base import (
    ApiModel,
    Arg,
    Duration,
    EnvList,
    Freeform,
    ImageName,
    IntOrPercent,
    LocalObjectReference,
    ObjectName,
    Quantity,
    Resources,
    SecretKeyRef,
    duration_range,
)
from disagg_operator.api.rules import JsonObject, rule, text_map, with_rules

_RANKS: Final = "nothing: spec.<role>.parallelism says how ranks are spread"
_LISTENS: Final = "nothing: the engine listens on port 8000 of all addresses of its pod"
_TLS: Final = "nothing: end TLS in front of the router, which speaks plain HTTP inside the cluster"
# Flags whose value the operator derives from fields, or on which its other objects rest. A second value for one server
# would win or lose by chance.
OWNED_FLAGS: Final = {
    "--model": "spec.model.uri",
    "--served-model-name": "spec.model.name",
    "--revision": "spec.model.revision",
    "--hf-token": "spec.model.tokenSecretRef",
    "--host": _LISTENS,
    "--port": _LISTENS,
    "--uds": _LISTENS,
    "--root-path": "nothing: probes and the router ask for paths at the root",
    "--config": "nothing: write its flags into args, where a change is seen",
    "--kv-transfer-config": "spec.<role>.kvTransferConfig",
    "--tensor-parallel-size": "spec.<role>.parallelism.tensor",
    "-tp": "spec.<role>.parallelism.tensor",
    "--pipeline-parallel-size": "spec.<role>.parallelism.pipeline",
    "-pp": "spec.<role>.parallelism.pipeline",
    "--data-parallel-size": "spec.<role>.parallelism.data",
    "-dp": "spec.<role>.parallelism.data",
    "--nnodes": "spec.<role>.parallelism.nodes",
    "--node-rank": _RANKS,
    "--master-addr": _RANKS,
    "--master-port": _RANKS,
    "--headless": _RANKS,
    "--data-parallel-rank": _RANKS,
    "--data-parallel-start-rank": _RANKS,
    "--data-parallel-size-local": _RANKS,
    "--data-parallel-address": _RANKS,
    "--data-parallel-external-lb": _RANKS,
    "--data-parallel-hybrid-lb": _RANKS,
    "--data-parallel-multi-port-external-lb": _RANKS,
    "--api-key": "spec.apiKeySecretRef",
    "--ssl-keyfile": _TLS,
    "--ssl-certfile": _TLS,
    "--ssl-ca-certs": _TLS,
    "--ssl-cert-reqs": _TLS,
    "--shutdown-timeout": "spec.<role>.terminationGracePeriodSeconds and drainSeconds",
}


def describe_remedy(flag: str) -> str:
    """What to do instead of writing a flag that the operator owns."""
    field = OWNED_FLAGS[flag]
    return f"remove it: {field.removeprefix('nothing: ')}" if field.startswith("nothing: ") else f"set {field}"


# vLLM takes `--a_b` for `--a-b`, `--a=value`, and `--a.key value` for a part of a JSON value. It also takes unambiguous
# beginnings, which need vLLM's list of flags to be known as such: build.flags judges those.
_OWNED_PATTERN: Final = "^(" + "|".join(flag[:2] + flag[2:].replace("-", "[-_]") for flag in OWNED_FLAGS) + ")([=.]|$)"
# No flag is longer, and the cost of a match grows with the text: long values would use up what the API server allows.
_IS_OWNED: Final = f"(a.size() > 64 ? a.substring(0, 64) : a).matches('{_OWNED_PATTERN}')"
# Such flags, as vLLM's documentation spells them.
_OWNED_FOUND: Final = f"self.filter(a, {_IS_OWNED}).map(a, a.split('=')[0].split('.')[0].replace('_', '-'))"
_ARGS_RULES = with_rules(
    rule(
        f"!self.exists(a, {_IS_OWNED})",
        "the operator owns a flag in it; remove it, and set the field that it has instead",
        messageExpression=f"{_OWNED_FOUND}.map(f, 'the operator owns ' + f + '; ' + "
        + text_map({flag: describe_remedy(flag) for flag in OWNED_FLAGS})
        + "[f])[0]",
    ),
    rule(
        "self.size() == 0 || self[0].startsWith('-')",
        "args are flags for `vllm serve`; the first one must begin with '-' (the model is spec.model.uri)",
    ),
    rule(
        "self.all(a, !a.matches('hf_[A-Za-z0-9]{30,}'))",
        "what looks like a token of the model hub; put it into a Secret and set spec.model.tokenSecretRef",
    ),
)
ArgList = Annotated[list[Arg], Field(max_length=128, json_schema_extra=_ARGS_RULES)]


class CacheType(StrEnum):
    """Where downloaded weights are kept."""

    EMPTY_DIR = "EmptyDir"
    CLAIM = "PersistentVolumeClaim"


class ModelCache(ApiModel):
    """Where downloaded weights are kept, so that not every pod downloads them."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                "self.type == 'PersistentVolumeClaim' ? has(self.claimName) : !has(self.claimName)",
                "with type PersistentVolumeClaim set claimName; with EmptyDir remove it",
            )
        )
    )
    type: CacheType = Field(
        CacheType.EMPTY_DIR, description="EmptyDir: each pod downloads for itself. PersistentVolumeClaim: shared."
    )
    claim_name: ObjectName | None = Field(
        None, description="An existing claim in the same namespace; ReadWriteMany when pods run on several nodes."
    )
    size: Quantity | None = Field(
        None, description="Size limit of the EmptyDir; also requested as ephemeral storage, so that the node has it."
    )


# It becomes a word on a command line.
_PLAIN_WORD: Final = with_rules(
    rule(
        "self.matches('^[A-Za-z0-9_][-A-Za-z0-9_./:@+]*$')",
        "must begin with a letter or digit; after it, use letters, digits and any of - _ . / : @ +",
    )
)
_MODEL_RULES: Final = with_rules(
    rule(
        "self.matches('^(hf|pvc|oci|file)://')",
        "unknown model source; write hf://org/model, pvc://claim/path, oci://image or file:///path/in/the/image",
    ),
    rule(
        "!self.startsWith('hf://') || self.matches('^hf://[A-Za-z0-9][-A-Za-z0-9_.]*(/[A-Za-z0-9][-A-Za-z0-9_.]*)?$')",
        "write hf://org/model; a branch, tag or commit goes into spec.model.revision",
    ),
    rule(
        "!self.startsWith('pvc://') || self.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/.*)?$') && "
        "!self.matches('/[.][.](/|$)')",
        "write pvc://claim/path: the name of a claim in this namespace, and a path in it without '..'",
    ),
    rule(
        "!self.startsWith('oci://') || self.matches('^oci://[a-zA-Z0-9][^ ]*$') && !self.endsWith('/')",
        "write oci:// and an image, such as oci://registry.example.com/team/model:tag",
    ),
    rule(
        "!self.startsWith('file://') || self.matches('^file:///.*[^/]')",
        "write file:// and an absolute path inside the engine image, such as file:///models/llama",
    ),
)


class ModelSpec(ApiModel):
    """The model that is served."""

    uri: Annotated[str, Field(min_length=1, max_length=512, json_schema_extra=_MODEL_RULES)] = Field(
        description="Where the weights are: hf://org/model (downloaded), pvc://claim/path (mounted read-only), "
        "oci://image (mounted as an image volume) or file:///path (inside the engine image)."
    )
    revision: Annotated[str, Field(min_length=1, max_length=128, json_schema_extra=_PLAIN_WORD)] | None = Field(
        None, description="Branch, tag or commit of an hf:// model. A commit is best: a branch can move under you."
    )
    name: Annotated[str, Field(min_length=1, max_length=253, json_schema_extra=_PLAIN_WORD)] | None = Field(
        None, description="Name that clients ask for. Default: the last part of uri."
    )
    token_secret_ref: SecretKeyRef | None = Field(
        None, description="Token for the model hub. Only a reference reaches the pods, never the value."
    )
    cache: ModelCache | None = Field(None, description="Cache of hf:// downloads. Default: an EmptyDir in each pod.")


class Device(StrEnum):
    """What the engines compute on."""

    CUDA = "cuda"
    CPU = "cpu"


class PullPolicy(StrEnum):
    """When the kubelet pulls an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class EngineSpec(ApiModel):
    """The vLLM engine, for both roles. A role's own fields win."""

    device: Device = Field(Device.CUDA, description="What the engines compute on: cuda or cpu.")
    image: ImageName | None = Field(
        None,
        description="Engine image: vLLM with Mooncake and our connector in it. Default: the operator's for the device, "
        "recorded when this resource is first seen, so that no upgrade of the operator restarts an engine.",
    )
    image_pull_policy: PullPolicy | None = Field(
        None, description="When the engine image is pulled. Default: Kubernetes'."
    )
    image_pull_secrets: (
        Annotated[
            list[LocalObjectReference],
            Field(
                max_length=16,
                json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
            ),
        ]
        | None
    ) = Field(None, description="Secrets for pulling images, for every pod of this resource.")
    args: ArgList = Field(
        default_factory=list, description="Flags for `vllm serve` of both roles. Flags the operator owns are refused."
    )
    env: EnvList = Field(default_factory=list, description="Environment of both roles' engines.")
    shared_memory_size: Quantity = Field(
        "1Gi", description="Size limit of /dev/shm, which ranks of one pod talk through. Counts as the pod's memory."
    )


class Parallelism(ApiModel):
    """How one replica is spread over ranks. A pod has tensor x pipeline x data / nodes ranks."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                "(self.tensor * self.pipeline * self.data) % self.nodes == 0",
                "tensor x pipeline x data must be a multiple of nodes",
            )
        )
    )
    tensor: int = Field(1, ge=1, le=1024, description="Tensor parallel ranks.")
    pipeline: int = Field(1, ge=1, le=256, description="Pipeline parallel stages.")
    data: int = Field(1, ge=1, le=1024, description="Data parallel engines behind one endpoint.")
    nodes: int = Field(
        1, ge=1, le=256, description="Pods that one replica spans. More than one needs LeaderWorkerSet in the cluster."
    )


class Rollout(ApiModel):
    """How new pods replace old ones, as in a Deployment."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                "!(string(self.maxSurge) in ['0', '0%'] && string(self.maxUnavailable) in ['0', '0%'])",
                "maxSurge and maxUnavailable cannot both be 0: nothing could be replaced; set one of them to 1",
            ),
            rule(
                "type(self.maxUnavailable) == int || self.maxUnavailable.matches('^(100|[0-9]{1,2})%$')",
                "maxUnavailable can be at most 100%",
                fieldPath=".maxUnavailable",
            ),
        )
    )
    max_surge: IntOrPercent = Field(1, description="Pods above the wished count during a rollout.")
    max_unavailable: IntOrPercent = Field(0, description="Pods below the wished count during a rollout.")


_KEDA: JsonObject = {
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
    "required": ["triggers"],
    "properties": {
        "triggers": {
            "type": "array",
            "minItems": 1,
            "maxItems": 32,
            "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "description": "What is looked at, at least one thing, as in a ScaledObject.",
        },
    },
}
Keda = Annotated[JsonObject, WithJsonSchema(_KEDA)]


class Scaling(ApiModel):
    """Scaling by kubectl scale, HPA or KEDA instead of by a fixed count."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
                "minReplicas is above maxReplicas; lower it",
                fieldPath=".minReplicas",
            ),
            rule("!has(self.metrics) || has(self.maxReplicas)", "metrics need maxReplicas as an upper bound; set it"),
            rule("!has(self.behavior) || has(self.metrics)", "behavior goes with metrics; set them, or remove it"),
            rule(
                "!(has(self.metrics) && has(self.keda))",
                "set metrics or keda, not both: two autoscalers would move one count",
            ),
        )
    )
    min_replicas: int = Field(
        1, ge=0, le=10000, description="Lower bound of the autoscaler that is made, and the least that it begins with."
    )
    max_replicas: int | None = Field(
        None, ge=1, le=10000, description="Upper bound of the autoscaler that is made; needed with metrics."
    )
    metrics: Annotated[list[Freeform], Field(max_length=16)] | None = Field(
        None, description="Metrics of a HorizontalPodAutoscaler (autoscaling/v2), which is made when there are any."
    )
    behavior: Freeform | None = Field(None, description="How fast that HorizontalPodAutoscaler scales up and down.")
    keda: Keda | None = Field(
        None,
        description="Fields of a ScaledObject (keda.sh/v1alpha1), which is made: triggers, pollingInterval, "
        "cooldownPeriod, advanced and others. Its target and its bounds are the operator's.",
    )


_KV_TRANSFER_CONFIG: JsonObject = {
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "kv_role": {
            "type": "string",
            "enum": ["kv_producer", "kv_consumer", "kv_both"],
            "description": "Whether the engine writes KV, reads it, or both. Default: what the role needs.",
        },
    },
}
KVTransferConfig = Annotated[JsonObject, WithJsonSchema(_KV_TRANSFER_CONFIG)]


class RoleSpec(ApiModel):
    """Pods of one role: prefill or decode."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                "!(has(self.replicas) && has(self.scaling))", "set replicas or scaling, not both: each owns the count"
            ),
            rule(
                "self.drainSeconds < self.terminationGracePeriodSeconds",
                "drainSeconds must be below terminationGracePeriodSeconds: the engine needs the rest to finish",
                fieldPath=".drainSeconds",
            ),
        )
    )
    replicas: int | None = Field(
        None,
        ge=0,
        le=10000,
        description="Pods of this role (groups of pods, when parallelism.nodes is above 1). Default 1. Zero is legal: "
        "without prefill, decode computes prompts itself; without decode, requests are answered 503.",
    )
    scaling: Scaling | None = Field(
        None,
        description="Let `kubectl scale` or an autoscaler own the count instead, through a "
        "DisaggregatedInferenceScaler called <name>-<role>. {} leaves it to you who scales that.",
    )
    parallelism: Parallelism = Field(Parallelism(), description="How one replica is spread over ranks.")
    image: ImageName | None = Field(None, description="Engine image of this role. Default: spec.engine.image.")
    args: ArgList = Field(
        default_factory=list,
        description="Flags for `vllm serve`, after spec.engine.args; for a repeated flag the last wins.",
    )
    env: EnvList = Field(
        default_factory=list, description="Environment of the engine; wins over spec.engine.env by name."
    )
    resources: Resources = Field(
        Resources(),
        description="Resources of the engine container. Memory is derived when unset: segment and buffer of each rank, "
        "shared memory and what the engine needs. GPUs are derived for cuda: one per rank.",
    )
    rollout: Rollout = Field(Rollout(), description="How new pods replace old ones.")
    startup_timeout: Duration = Field(
        "1h",
        description="How long an engine may take to load its model and compile before it is restarted.",
        json_schema_extra=duration_range("10s", "24h"),
    )
    termination_grace_period_seconds: int = Field(
        60, ge=5, le=86400, description="Seconds a leaving pod has to finish its requests, drainSeconds included."
    )
    drain_seconds: int = Field(
        15, ge=0, le=3600, description="Seconds a leaving pod goes on taking requests while the router forgets it."
    )
    kv_transfer_config: KVTransferConfig | None = Field(
        None,
        description="Merged over the generated --kv-transfer-config, key by key. kv_role must leave the role able to "
        "do its part: kv_producer or kv_both for prefill, kv_consumer or kv_both for decode.",
    )
    template: Freeform | None = Field(
        None,
        description="Partial pod template merged over the generated one; lists of containers, volumes and env merge by "
        "name. The engine container is called `engine`.",
    )
