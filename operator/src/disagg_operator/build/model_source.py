"""Where the weights come from: what `vllm serve` is told, and what has to be mounted for it."""

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from disagg_operator.api.engine import CacheType, ModelSpec
from disagg_operator.build.inputs import Manifest
from disagg_operator.build.objects import compact

MODEL_DIR: Final = "/models"
HUB_DIR: Final = "/var/cache/huggingface"


@dataclass(frozen=True)
class ModelSource:
    """One model as a pod sees it. `argument` is the first argument of `vllm serve`: a path or a repository."""

    argument: str
    flags: tuple[str, ...] = ()
    env: tuple[Manifest, ...] = ()
    volumes: tuple[Manifest, ...] = ()
    mounts: tuple[Manifest, ...] = ()
    cache_size: str | int | None = field(default=None)


def build_model_source(model: ModelSpec) -> ModelSource:
    """The source that the URI's scheme names. The URI was judged by the API server."""
    scheme, _, rest = model.uri.partition("://")
    if scheme == "pvc":
        return _build_claim(rest)
    if scheme == "oci":
        return _build_image(rest)
    if scheme == "file":
        return ModelSource(argument=rest, env=(_OFFLINE,))
    return _build_hub(model, rest)


def derive_model_name(model: ModelSpec) -> str:
    """The name that clients ask for: as written, else the last part of the URI without an image's tag."""
    if model.name:
        return model.name
    rest = model.uri.partition("://")[2].rstrip("/")
    if model.uri.startswith("oci://"):
        rest = re.sub(r":[^/:]+$", "", rest.partition("@")[0])
    return rest.rpartition("/")[2]


# Without it the hub client asks the internet about a model that lies on disk.
_OFFLINE: Final[Manifest] = {"name": "HF_HUB_OFFLINE", "value": "1"}


def _build_claim(rest: str) -> ModelSource:
    # The whole claim is mounted, not a subPath: a hub cache on a claim has links from snapshots to blobs.
    claim, _, path = rest.partition("/")
    return ModelSource(
        argument=str(PurePosixPath(MODEL_DIR, claim, path.strip("/"))),
        env=(_OFFLINE,),
        volumes=({"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}},),
        mounts=({"name": "model", "mountPath": f"{MODEL_DIR}/{claim}", "readOnly": True},),
    )


def _build_image(reference: str) -> ModelSource:
    path = f"{MODEL_DIR}/image"
    return ModelSource(
        argument=path,
        env=(_OFFLINE,),
        volumes=({"name": "model", "image": {"reference": reference}},),
        mounts=({"name": "model", "mountPath": path, "readOnly": True},),
    )


def _build_hub(model: ModelSpec, repository: str) -> ModelSource:
    env: list[Manifest] = [{"name": "HF_HOME", "value": HUB_DIR}]
    if model.token_secret_ref is not None:
        reference = {"name": model.token_secret_ref.name, "key": model.token_secret_ref.key}
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    cache = model.cache
    volume: Manifest
    if cache is not None and cache.type is CacheType.CLAIM:
        volume = {"name": "model-cache", "persistentVolumeClaim": {"claimName": cache.claim_name}}
    else:
        volume = {"name": "model-cache", "emptyDir": compact(sizeLimit=cache.size if cache else None)}
    return ModelSource(
        argument=repository,
        flags=("--revision", model.revision) if model.revision else (),
        env=tuple(env),
        volumes=(volume,),
        mounts=({"name": "model-cache", "mountPath": HUB_DIR},),
        cache_size=cache.size if cache is not None and cache.type is CacheType.EMPTY_DIR else None,
    )
