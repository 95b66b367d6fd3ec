"""The operator lives by the rights that the chart gives it: it runs here as its own service account."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from chart.helm import ROOT
from chart.site import RESOURCE, Site
from router.programs import Program, eventually, free_port, running

ACCOUNT = "disagg-disaggregated-inference-operator"
# The least that shows that every kind of child could be written.
CHILDREN = {
    "deployment.apps/llama-prefill",
    "deployment.apps/llama-decode",
    "deployment.apps/llama-master",
    "deployment.apps/llama-router",
    "configmap/llama-mooncake-config",
    "service/llama-router",
    "serviceaccount/llama-router",
    "role.rbac.authorization.k8s.io/llama-router",
    "rolebinding.rbac.authorization.k8s.io/llama-router",
    "poddisruptionbudget.policy/llama-decode",
    "disaggregatedinferencescaler.inference.disagg.io/llama-prefill",
    "horizontalpodautoscaler.autoscaling/llama-prefill",
    "networkpolicy.networking.k8s.io/llama-master",
}
KINDS = "deploy,cm,svc,sa,role,rolebinding,pdb,networkpolicy,dinfs,hpa"
BY_CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}}


@contextmanager
def operator(site: Site, namespace: str, directory: Path) -> Iterator[Path]:
    """The operator with the arguments of the installed Deployment, as its service account. Gives its log."""
    (deployment,) = site.get("deployment", "-n", namespace)["items"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    token = site.kubectl("create", "token", ACCOUNT, "-n", namespace).strip()
    config = yaml.safe_load(site.kubeconfig.read_text())
    config["users"] = [{"name": "t", "user": {"token": token}}]
    kubeconfig = directory / "operator.kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    ports = [f"--metrics-port={free_port()}", f"--health-port={free_port()}"]
    environment = {"KUBECONFIG": str(kubeconfig), "POD_NAME": "operator-0", "POD_NAMESPACE": namespace}
    log = directory / "operator.log"
    program = Program([sys.executable, "-m", "disagg_operator", *container["args"], *ports], log, environment)
    with running(program):
        yield log


def wish(site: Site, namespace: str) -> None:
    """Apply a resource to a namespace, made when missing."""
    site.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    metadata = {"name": "llama", "namespace": namespace}
    scaled = {"scaling": {"maxReplicas": 2, "metrics": [BY_CPU]}}
    spec = {"model": {"uri": "hf://org/model"}, "prefill": scaled, "decode": {"replicas": 2}}
    site.apply(RESOURCE | {"metadata": metadata, "spec": spec})


def refusals(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if "forbidden" in line.lower()]


def test_rights_of_a_cluster_wide_install_suffice(site: Site, tmp_path: Path) -> None:
    site.install("disagg", "disagg-system")
    site.serve()
    wish(site, "team-a")
    with operator(site, "disagg-system", tmp_path) as log:
        eventually(lambda: site.names(KINDS, "-n", "team-a") >= CHILDREN, f"all children are there; see {log}", 60)
        eventually(lambda: "conditions" in site.get("dinf", "llama", "-n", "team-a").get("status", {}), "status", 30)
        # What cannot be built is told by an event, so here is one.
        refused = {"model": {"uri": "hf://org/model"}, "decode": {"scaling": {"keda": {"triggers": [{}]}}}}
        site.apply(RESOURCE | {"metadata": {"name": "llama", "namespace": "team-a"}, "spec": refused})
        eventually(lambda: bool(site.names("events", "-n", "team-a")), "an event is posted", 30)
    assert not refusals(log)


def test_rights_of_a_namespaced_install_suffice(site: Site, tmp_path: Path) -> None:
    """Field case C98: it serves its namespaces, and neither sees nor asks for another."""
    site.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    site.serve()
    for namespace in ("ops", "team-b", "team-c"):
        wish(site, namespace)
    site.kubectl("delete", "dinf", "llama", "-n", "ops")
    site.install("disagg", "ops", "--set", "watchNamespaces={team-b}", "--set", "crds.install=false")
    with operator(site, "ops", tmp_path) as log:
        eventually(lambda: site.names(KINDS, "-n", "team-b") >= CHILDREN, f"all children are there; see {log}", 60)
        eventually(lambda: "conditions" in site.get("dinf", "llama", "-n", "team-b").get("status", {}), "status", 30)
    assert not refusals(log)
    assert not site.names(KINDS, "-n", "team-c") & CHILDREN


def test_without_a_right_it_says_which(site: Site, tmp_path: Path) -> None:
    """Field case C98: a missing right is a clear log line and a condition, neither a crash loop nor silence."""
    site.install("disagg", "disagg-system")
    site.serve()
    wish(site, "team-d")
    name = "disagg-system:" + ACCOUNT
    role = site.get("clusterrole", name)
    role["rules"] = [
        rule | {"verbs": [verb for verb in rule["verbs"] if verb not in {"create", "patch"}]}
        if "networkpolicies" in rule["resources"]
        else rule
        for rule in role["rules"]
    ]
    site.kubectl("replace", "-f", "-", stdin=json.dumps(role))

    def told() -> str:
        conditions = site.get("dinf", "llama", "-n", "team-d").get("status", {}).get("conditions", [])
        return next((one["message"] for one in conditions if one["type"] == "Ready"), "")

    with operator(site, "disagg-system", tmp_path) as log:
        eventually(lambda: "networkpolicies" in told(), f"the condition names the missing right; see {log}", 60)
        others = {child for child in CHILDREN if "networkpolicy" not in child}
        eventually(lambda: site.names(KINDS, "-n", "team-d") >= others, "everything else is there", 30)
