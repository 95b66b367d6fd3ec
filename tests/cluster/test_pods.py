"""What people expect of a cluster, in pods: Services by name, logs, exec, port-forward, Pod Security, ends."""

import json
import urllib.request
from typing import Any

import pytest
from demo.kubectl import Kubectl, KubectlError, Manifest, wait_until

pytestmark = pytest.mark.cluster
NAMESPACE = "cluster-tests"


def restricted_pod(image: str, **changes: Any) -> Manifest:
    """The pod spec that Pod Security "restricted" asks for."""
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    container = {"name": "probe", "image": image, "args": ["serve"], "securityContext": security, **changes}
    container["readinessProbe"] = {"httpGet": {"port": 8080}, "periodSeconds": 1}
    pod_security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    return {"containers": [container], "securityContext": pod_security, "terminationGracePeriodSeconds": 1}


def in_namespace(kind: str, version: str, name: str, **rest: Any) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, **rest}


@pytest.fixture(scope="module")
def web(cluster_up: Kubectl, probe_image: str) -> Kubectl:
    """A Deployment of two and its Service, in a namespace that enforces "restricted", and one client pod."""
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": restricted_pod(probe_image)}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    cluster_up.apply(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        }
    )
    wait_until(
        lambda: cluster_up.get("serviceaccount", "default", NAMESPACE), timeout=60, what="the namespace's account"
    )
    cluster_up.apply(
        in_namespace("Deployment", "apps/v1", "web", spec=spec),
        in_namespace("Service", "v1", "web", spec={"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]}),
        in_namespace("Pod", "v1", "client", spec=restricted_pod(probe_image)),
    )
    cluster_up.run("rollout", "status", "deployment/web", "-n", NAMESPACE, "--timeout=120s")
    cluster_up.run("wait", "--for=condition=Ready", "pod/client", "-n", NAMESPACE, "--timeout=120s")
    # kube-proxy learns of ready pods a moment after everybody else.
    wait_until(lambda: answers(cluster_up, "http://web/"), timeout=60, what="the Service's first answer")
    return cluster_up


def answers(kubectl: Kubectl, url: str) -> bool:
    try:
        fetch(kubectl, url)
    except KubectlError:
        return False
    return True


def fetch(kubectl: Kubectl, url: str) -> str:
    return kubectl.run("exec", "client", "-n", NAMESPACE, "--", "/probe", "get", url)


@pytest.mark.parametrize("host", ["web", f"web.{NAMESPACE}", f"web.{NAMESPACE}.svc.cluster.local"])
def test_a_service_is_reached_by_name(web: Kubectl, host: str) -> None:
    assert fetch(web, f"http://{host}/").startswith("hello from web-")


def test_a_service_spreads_over_its_pods(web: Kubectl) -> None:
    wait_until(
        lambda: len({fetch(web, "http://web/") for _ in range(20)}) == 2,
        timeout=60,
        what="both pods of the Service answer",
    )


def test_a_pod_reaches_itself_through_its_service(web: Kubectl) -> None:
    web.run("scale", "deployment/web", "-n", NAMESPACE, "--replicas=1")
    web.run("rollout", "status", "deployment/web", "-n", NAMESPACE, "--timeout=60s")
    answered = web.run("exec", "deployment/web", "-n", NAMESPACE, "--", "/probe", "get", "http://web/")
    assert answered.startswith("hello from web-")


def test_an_unknown_name_is_refused_and_not_asked_outside(web: Kubectl) -> None:
    with pytest.raises(KubectlError, match=r"no such host|server misbehaving"):
        fetch(web, "http://no-such-service/")


def test_nothing_outside_this_machine_is_reached(web: Kubectl) -> None:
    # An address of the range that is reserved for documentation.
    with pytest.raises(KubectlError, match=r"no route to host|permission denied|network is unreachable"):
        fetch(web, "http://203.0.113.1/")


def test_logs_tell_what_a_container_said(web: Kubectl) -> None:
    assert "serving as client" in web.run("logs", "client", "-n", NAMESPACE)


def test_a_port_is_forwarded(web: Kubectl) -> None:
    with (
        web.port_forward(NAMESPACE, "service/web", 80) as url,
        urllib.request.urlopen(url, timeout=10) as answer,  # noqa: S310 - loopback only
    ):
        assert answer.read().decode().startswith("hello from web-")


def test_a_pod_that_is_not_restricted_is_refused(web: Kubectl, probe_image: str) -> None:
    spec = {"containers": [{"name": "probe", "image": probe_image}]}
    with pytest.raises(KubectlError, match='violates PodSecurity "restricted'):
        web.apply(in_namespace("Pod", "v1", "careless", spec=spec))


def test_an_image_that_is_not_there_is_told(web: Kubectl) -> None:
    web.apply(in_namespace("Pod", "v1", "absent", spec=restricted_pod("127.0.0.1:5000/disagg-tests/no-such:1")))

    def reason() -> bool:
        pod = web.get("pod", "absent", NAMESPACE) or {}
        states = pod.get("status", {}).get("containerStatuses", [])
        return any(s["state"].get("waiting", {}).get("reason") in ("ErrImagePull", "ImagePullBackOff") for s in states)

    wait_until(reason, timeout=60, what="the pod says that its image cannot be pulled")


def test_a_killed_container_is_started_again(web: Kubectl, probe_image: str) -> None:
    spec = restricted_pod(probe_image, args=["get", "http://127.0.0.1:9/"])
    web.apply(in_namespace("Pod", "v1", "crashing", spec=spec))

    def restarts() -> bool:
        pod = web.get("pod", "crashing", NAMESPACE) or {}
        return any(s["restartCount"] >= 1 for s in pod.get("status", {}).get("containerStatuses", []))

    wait_until(restarts, timeout=60, what="the container's second start")


def test_the_audit_log_names_who_wrote(web: Kubectl) -> None:
    from cluster import paths

    web.run("create", "configmap", "audited", "-n", NAMESPACE)
    events = [json.loads(line) for line in paths.audit_log().read_text().splitlines()]
    ours = [e for e in events if e.get("objectRef", {}).get("name") == "audited" and e["verb"] == "create"]
    assert [event["user"]["username"] for event in ours] == ["disagg-admin"]


def test_a_namespace_goes_with_all_that_is_in_it(web: Kubectl) -> None:
    web.run("delete", "namespace", NAMESPACE, "--timeout=120s")
    assert web.get("namespace", NAMESPACE, "default") is None
