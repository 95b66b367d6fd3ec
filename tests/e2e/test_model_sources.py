"""Every place that a model may come from, each served by decode alone. oci:// is in every other test."""

from pathlib import Path
from typing import Any

import pytest
from demo.client import call, complete
from demo.cluster import Cluster
from e2e import hub
from e2e.stack import MODEL, Served, example, restricted_namespace, serve

pytestmark = pytest.mark.long
NAMESPACE = "e2e-sources"
REPOSITORY = "acme/smollm2"


def decode_alone(name: str, **model: Any) -> dict[str, Any]:
    """The example with one decode pod and no prefill; the source is what is tested here."""
    resource = example(name)
    resource["spec"]["model"] = {"name": MODEL, **model}
    resource["spec"]["prefill"]["replicas"] = 0
    return resource


def answers_under_its_name(served: Served) -> None:
    models = call(f"{served.url()}/v1/models").json()
    assert [model["id"] for model in models["data"]] == [MODEL]
    direct = call(f"{served.pod_url('decode')}/v1/models").json()
    assert [model["id"] for model in direct["data"]] == [MODEL]
    text = complete(served.url(), MODEL, "The capital of France is", 5)["choices"][0]["text"]
    assert "Paris" in text


def test_hugging_face_through_a_stand_in_hub(cluster: Cluster) -> None:
    restricted_namespace(cluster, NAMESPACE)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub", "namespace": NAMESPACE}}
    cluster.kubectl.apply({**secret, "stringData": {"token": "hf_stand_in"}})
    with hub.serving(Path(cluster.model_dir), REPOSITORY, "hf_stand_in", cluster.node_address) as endpoint:
        resource = decode_alone(
            "hf", uri=f"hf://{REPOSITORY}", revision="main", tokenSecretRef={"name": "hub", "key": "token"}
        )
        resource["spec"]["model"]["cache"] = {"type": "EmptyDir", "size": "1Gi"}
        resource["spec"]["engine"]["env"].append({"name": "HF_ENDPOINT", "value": endpoint})
        with serve(cluster, NAMESPACE, resource) as served:
            answers_under_its_name(served)
            pod = served.pods("decode")[0]
            assert "hf_stand_in" not in str(pod)


def test_claim(cluster: Cluster) -> None:
    restricted_namespace(cluster, NAMESPACE)
    storage = {"storageClassName": "", "accessModes": ["ReadOnlyMany"]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "e2e-models"},
        "spec": {
            "storageClassName": "",
            "accessModes": ["ReadOnlyMany"],
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(Path(cluster.model_dir).parent)},
            "claimRef": {"name": "models", "namespace": NAMESPACE},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models", "namespace": NAMESPACE},
        "spec": {**storage, "volumeName": "e2e-models", "resources": {"requests": {"storage": "1Gi"}}},
    }
    cluster.kubectl.apply(volume, claim)
    try:
        folder = Path(cluster.model_dir).name
        with serve(cluster, NAMESPACE, decode_alone("claim", uri=f"pvc://models/{folder}")) as served:
            answers_under_its_name(served)
    finally:
        cluster.kubectl.run("delete", "pvc", "models", "-n", NAMESPACE, "--ignore-not-found")
        cluster.kubectl.run("delete", "pv", "e2e-models", "--ignore-not-found")


def test_file_in_the_container(cluster: Cluster) -> None:
    """The folder is brought by a template overlay, which is tried here too."""
    resource = decode_alone("file", uri="file:///models/mine")
    reference = example("any")["spec"]["model"]["uri"].removeprefix("oci://")
    resource["spec"]["decode"]["template"] = {
        "metadata": {"labels": {"team": "search"}},
        "spec": {
            "volumes": [{"name": "mine", "image": {"reference": reference}}],
            "containers": [{"name": "engine", "volumeMounts": [{"name": "mine", "mountPath": "/models/mine"}]}],
        },
    }
    with serve(cluster, NAMESPACE, resource) as served:
        answers_under_its_name(served)
        assert served.pods("decode")[0]["metadata"]["labels"]["team"] == "search"


def test_a_wrong_source_is_told(cluster: Cluster) -> None:
    """An engine that cannot start says so in the CR's status, with the engine's own words where there are some."""
    restricted_namespace(cluster, NAMESPACE)
    resource = decode_alone("nowhere", uri="file:///models/none")
    resource["metadata"]["namespace"] = NAMESPACE
    cluster.kubectl.apply(resource)
    served = Served(cluster, NAMESPACE, "nowhere")
    try:
        told = served.wait_for("Degraded", "True", timeout=300)
        assert "nowhere-decode" in told["message"]
        with pytest.raises(TimeoutError):
            served.wait_for("Ready", "True", timeout=5)
    finally:
        served.delete()
