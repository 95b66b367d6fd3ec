"""Pushes images, and names them by digest, so that what runs is what was built."""

import urllib.error
import urllib.request

from imagebuild import buildah
from imagebuild.build import tags
from imagebuild.catalog import PUSHED

LOCAL_REGISTRY = "127.0.0.1:5000/disagg"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"


def push_all(registry: str, wanted: list[str]) -> None:
    """Push each wanted image whose tag the registry does not have, and move its `dev` tag."""
    known = tags()
    for name in PUSHED:
        if name not in wanted:
            continue
        for tag in (known[name], "dev"):
            digest = _digest(registry, name, tag)
            if digest is not None and (tag != "dev" or digest == _digest(registry, name, known[name])):
                continue
            print(f"  {name}:{tag}: pushing", flush=True)
            buildah.push(name, known[name], f"{registry}/{name}:{tag}")


def references(registry: str) -> dict[str, str]:
    """Every image as `registry/name@digest`, or by tag where the registry cannot be asked over plain HTTP."""
    known = tags()
    refs = {}
    for name in PUSHED:
        digest = _digest(registry, name, known[name])
        refs[name] = f"{registry}/{name}@{digest}" if digest else f"{registry}/{name}:{known[name]}"
    return refs


def _digest(registry: str, name: str, tag: str) -> str | None:
    host, _, path = registry.partition("/")
    if not host.startswith("127.0.0.1:"):
        return None
    request = urllib.request.Request(
        f"http://{host}/v2/{path}/{name}/manifests/{tag}", headers={"Accept": _MANIFEST}, method="HEAD"
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
            return str(response.headers["Docker-Content-Digest"])
    except urllib.error.URLError:
        return None
