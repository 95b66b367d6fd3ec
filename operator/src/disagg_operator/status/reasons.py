"""Condition types and reasons. Each is explained in docs/conditions.md; a test holds the two together."""

from enum import StrEnum


class ConditionType(StrEnum):
    """What is judged. `Reconciling` and `Stalled` are there only while True."""

    READY = "Ready"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    KV_SHARING = "KVSharing"
    SCALING_LIMITED = "ScalingLimited"
    UPDATE_AVAILABLE = "UpdateAvailable"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class Reason(StrEnum):
    """Why a condition is as it is: one word for programs."""

    # All is as wished.
    READY = "Ready"
    SUSPENDED = "Suspended"
    AVAILABLE = "Available"
    SETTLED = "Settled"
    AS_WISHED = "AsWished"
    SEGMENTS_REGISTERED = "SegmentsRegistered"
    UP_TO_DATE = "UpToDate"
    # On the way.
    ROLLING_OUT = "RollingOut"
    PAUSED = "Paused"
    WAITING_FOR_OLD_CHILDREN = "WaitingForOldChildren"
    STARTING = "Starting"
    # Not as wished, and the operator goes on trying.
    PREFILL_NOT_READY = "PrefillNotReady"
    DECODE_NOT_READY = "DecodeNotReady"
    ROUTER_NOT_READY = "RouterNotReady"
    MASTER_NOT_READY = "MasterNotReady"
    METADATA_NOT_READY = "MetadataNotReady"
    POD_FAILING = "PodFailing"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    API_ERROR = "ApiError"
    FORBIDDEN = "Forbidden"
    RESOURCE_CONFLICT = "ResourceConflict"
    INTERNAL_ERROR = "InternalError"
    # Not as wished until the user changes something.
    INVALID_SPEC = "InvalidSpec"
    CHILD_REFUSED = "ChildRefused"
    # KV sharing.
    PREFILL_SCALED_TO_ZERO = "PrefillScaledToZero"
    DECODE_SCALED_TO_ZERO = "DecodeScaledToZero"
    SEGMENTS_MISSING = "SegmentsMissing"
    MASTER_UNREACHABLE = "MasterUnreachable"
    MASTER_EXTERNAL = "MasterExternal"
    CONNECTOR_REPLACED = "ConnectorReplaced"
    # Scaling.
    RATIO_GUARD = "RatioGuard"
    ROLLOUT_IN_PROGRESS = "RolloutInProgress"
    CANNOT_WAKE = "CannotWake"
    # Updates.
    OPERATOR_DEFAULTS_CHANGED = "OperatorDefaultsChanged"
