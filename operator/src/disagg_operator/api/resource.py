"""DisaggregatedInference itself: spec, status and the whole object."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from disagg_operator.api.base import ApiModel, SecretKeyRef
from disagg_operator.api.engine import EngineSpec, ModelSpec, RoleSpec
from disagg_operator.api.kvstore import KVStoreSpec
from disagg_operator.api.router import RouterSpec
from disagg_operator.api.rules import JsonObject, rule, with_rules


class NetworkPolicyMode(StrEnum):
    """Whether NetworkPolicies are made."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class Ratio(ApiModel):
    """Band in which prefill replicas divided by decode replicas has to stay."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule("has(self.min) || has(self.max)", "set min, max or both"),
            rule(
                "!has(self.min) || !has(self.max) || self.min <= self.max",
                "min is above max; lower it",
                fieldPath=".min",
            ),
        )
    )
    min: Annotated[float, Field(gt=0, le=10000)] | None = Field(
        None, description="Least prefill replicas for each decode replica, such as 0.25: one prefill for four decode."
    )
    max: Annotated[float, Field(gt=0, le=10000)] | None = Field(
        None, description="Most prefill replicas for each decode replica."
    )


class SharedScaling(ApiModel):
    """What holds for the counts of both roles together."""

    ratio: Ratio | None = Field(
        None,
        description="A role that is scaled through its DisaggregatedInferenceScaler is held where this band ends. "
        "Counts written into `replicas`, and a role at zero, are taken as they are.",
    )


class Spec(ApiModel):
    """What the user wishes. Only `model.uri` must be given."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                "!has(self.model.cache) || self.model.uri.startsWith('hf://')",
                "model.cache keeps hf:// downloads; remove it: other sources are mounted",
                fieldPath=".model.cache",
            ),
            rule(
                "!has(self.model.revision) || self.model.uri.startsWith('hf://')",
                "model.revision goes with hf://; remove it: for pvc://, oci:// and file:// the path or tag says it",
                fieldPath=".model.revision",
            ),
            rule(
                "!has(self.prefill.kvTransferConfig) || !has(self.prefill.kvTransferConfig.kv_role) || "
                "self.prefill.kvTransferConfig.kv_role != 'kv_consumer'",
                "prefill has to write KV; write kv_producer or kv_both, or leave kv_role out",
                fieldPath=".prefill.kvTransferConfig",
            ),
            rule(
                "!has(self.decode.kvTransferConfig) || !has(self.decode.kvTransferConfig.kv_role) || "
                "self.decode.kvTransferConfig.kv_role != 'kv_producer'",
                "decode has to read KV; write kv_consumer or kv_both, or leave kv_role out",
                fieldPath=".decode.kvTransferConfig",
            ),
        )
    )
    model: ModelSpec = Field(description="The model that is served.")
    engine: EngineSpec = Field(EngineSpec(), description="The engine, for both roles.")
    prefill: RoleSpec = Field(RoleSpec(), description="Pods that compute the KV of prompts.")
    decode: RoleSpec = Field(RoleSpec(), description="Pods that generate tokens.")
    scaling: SharedScaling | None = Field(None, description="What holds for the counts of both roles together.")
    kv_store: KVStoreSpec = Field(KVStoreSpec(), description="The store through which prefill's KV reaches decode.")
    router: RouterSpec = Field(RouterSpec(), description="The one address that clients use.")
    api_key_secret_ref: SecretKeyRef | None = Field(
        None,
        description="API keys that clients must send, one per line in this Secret key. A rotated Secret is read again "
        "without any restart. Default: no key is asked for.",
    )
    network_policy: NetworkPolicyMode = Field(
        NetworkPolicyMode.ENABLED, description="Enabled: pods of this resource accept only what they need."
    )
    restart: Annotated[str, Field(max_length=64)] | None = Field(
        None,
        description="Any new value restarts both roles' pods by a rollout, and takes up the operator's current images.",
    )
    paused: bool = Field(
        False,
        description="True holds every rollout of this resource where it is, as a Deployment's paused does. Counts are "
        "followed meanwhile. A resource that is paused from its start has no pods.",
    )
    progress_deadline_seconds: int = Field(
        3600, ge=60, le=86400, description="Seconds without progress after which a rollout is reported as stuck."
    )
    revision_history_limit: int = Field(5, ge=0, le=100, description="Old revisions kept of each workload.")


Generation = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]


class Condition(ApiModel):
    """One condition, as everywhere in Kubernetes."""

    type: Annotated[str, Field(max_length=316)] = Field(description="Name of the condition.")
    status: Annotated[str, Field(json_schema_extra={"enum": ["True", "False", "Unknown"]})] = Field(
        description="True, False or Unknown."
    )
    observed_generation: Generation | None = Field(None, description="Generation of the spec that this was judged for.")
    last_transition_time: Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})] = Field(
        description="When status last changed."
    )
    reason: Annotated[str, Field(max_length=1024)] = Field(description="One word for programs.")
    message: Annotated[str, Field(max_length=32768)] = Field(description="A sentence for people.")


class RoleStatus(ApiModel):
    """What is there of one role."""

    replicas: int = Field(0, description="Pods that exist.")
    ready_replicas: int = Field(0, description="Pods that are ready, of any revision.")
    updated_replicas: int = Field(0, description="Pods of the current revision.")
    ready: Annotated[str, Field(max_length=32)] = Field("", description="Ready of wished pods, for kubectl get.")
    selector: Annotated[str, Field(max_length=1024)] = Field("", description="Label selector of the role's pods.")
    revision: Annotated[str, Field(max_length=63)] = Field("", description="Digest of the role's pod template.")


class KVStoreStatus(ApiModel):
    """What is there of the store, as the master says."""

    segments: int = Field(0, description="Segments registered with the master.")
    expected_segments: int = Field(0, description="Segments that ready engines should have registered.")
    pool_size: Annotated[str, Field(max_length=32)] = Field(
        "", description="Memory of the whole pool when every wished engine is there: ranks x segment size."
    )


class Status(ApiModel):
    """What is there. Written by the operator alone."""

    observed_generation: Annotated[int, Field(ge=-1, json_schema_extra={"format": "int64"})] | None = Field(
        None, description="Generation of the spec that this status is about; -1 before the operator has seen any."
    )
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        ),
    ] = Field(default_factory=list, description="Ready, Available, Progressing, Degraded, KVSharing and others.")
    prefill: RoleStatus | None = Field(None, description="Prefill pods.")
    decode: RoleStatus | None = Field(None, description="Decode pods.")
    kv_store: KVStoreStatus | None = Field(None, description="The store.")
    kv_revision: Annotated[str, Field(max_length=63)] | None = Field(
        None, description="Digest of all that decides KV bytes. Pods share KV only within one."
    )
    endpoint: Annotated[str, Field(max_length=512)] | None = Field(
        None, description="URL of the router inside the cluster."
    )
    model: Annotated[str, Field(max_length=253)] | None = Field(None, description="Name that clients ask for.")
    hints: Annotated[list[Annotated[str, Field(max_length=1024)]], Field(max_length=32)] | None = Field(
        None, description="Things that work but deserve a look, such as a config key without effect."
    )


class ObjectMeta(ApiModel):
    """The parts of an object's metadata that the operator reads."""

    name: str
    namespace: str
    uid: str = ""
    generation: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    deletion_timestamp: str | None = None


class DisaggregatedInference(ApiModel):
    """One served model, split into prefill and decode."""

    metadata: ObjectMeta
    spec: Spec
    status: Status = Status()

    @classmethod
    def from_object(cls, body: JsonObject) -> "DisaggregatedInference":
        """Read an object as the API server gives it. Raises pydantic's ValidationError."""
        return cls.model_validate(body)
