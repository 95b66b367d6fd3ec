"""Judges names of other objects: the API server would refuse a pod with a bad one, when half the children are there."""

import re
from collections.abc import Iterator
from typing import Final

from mooncake_store_connector.problems import Problem

from disagg_operator.api.names import MAX_NAME_LENGTH, NAME_PATTERN, suggest_name
from disagg_operator.api.resource import DisaggregatedInference

_OBJECT: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")


def find_name_problems(resource: DisaggregatedInference) -> Iterator[Problem]:
    """The resource's own name: children's names and labels are made of it."""
    name = resource.metadata.name
    if len(name) > MAX_NAME_LENGTH or not re.fullmatch(NAME_PATTERN, name):
        found = f"{name!r} with {len(name)} characters"
        rule = f"use at most {MAX_NAME_LENGTH} characters of a-z, 0-9 and -, a letter first"
        yield Problem("metadata.name", found, f"{rule}, such as {suggest_name(name)}")


def find_reference_problems(resource: DisaggregatedInference) -> Iterator[Problem]:
    """Names of Secrets, claims and keys."""
    spec = resource.spec
    for path, reference in (
        ("spec.model.tokenSecretRef", spec.model.token_secret_ref),
        ("spec.apiKeySecretRef", spec.api_key_secret_ref),
    ):
        if reference is None:
            continue
        yield from _judge_object(f"{path}.name", reference.name)
        if not _KEY.fullmatch(reference.key):
            remedy = "use letters, digits, '-', '_' and '.', as keys of a Secret have"
            yield Problem(f"{path}.key", "not a key of a Secret", remedy)
    for index, secret in enumerate(spec.engine.image_pull_secrets or []):
        yield from _judge_object(f"spec.engine.imagePullSecrets[{index}].name", secret.name)
    if spec.model.cache is not None and spec.model.cache.claim_name:
        yield from _judge_object("spec.model.cache.claimName", spec.model.cache.claim_name)
    yield from _find_uri_problems(spec.model.uri)
    for path, text in (("spec.model.name", spec.model.name), ("spec.model.revision", spec.model.revision)):
        if text is not None and text.startswith("-"):
            yield Problem(path, f"{text!r} begins with '-'", "begin it otherwise: programs would take it for a flag")


def _find_uri_problems(uri: str) -> Iterator[Problem]:
    path = "spec.model.uri"
    scheme, _, rest = uri.partition("://")
    if scheme == "pvc":
        claim, _, folder = rest.partition("/")
        if not _OBJECT.fullmatch(claim):
            yield Problem(path, f"{claim!r} is not the name of a claim", "write pvc://claim/path/in/the/claim")
        if ".." in folder.split("/"):
            yield Problem(path, "a path with '..' in it", "write the path from the claim's root")
    elif scheme not in {"hf", "oci", "file"} or not rest:
        remedy = "write hf://org/model, pvc://claim/path, oci://image or file:///path/in/the/image"
        yield Problem(path, f"found {uri!r}", remedy)


def _judge_object(path: str, name: str) -> Iterator[Problem]:
    # The name is not repeated where somebody may have pasted the secret itself.
    if not _OBJECT.fullmatch(name):
        yield Problem(path, "not the name of an object", "use a-z, 0-9, '-' and '.', as Kubernetes' names have")
