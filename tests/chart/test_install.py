"""Install, upgrade and uninstall with the real helm on a real API server. No kubelet: nothing waits for pods."""

import subprocess
from pathlib import Path

import pytest
import yaml
from chart.helm import CHART, ROOT, HelmError
from chart.site import CRD, Site
from cluster import paths


@pytest.fixture(scope="session")
def next_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart's next version, whose CRD has one more field."""
    chart = tmp_path_factory.mktemp("next") / CHART.name
    subprocess.run(["cp", "-r", str(CHART), str(chart)], check=True)
    facts = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump(facts | {"version": "0.99.0", "appVersion": "0.99.0"}))
    for path in (chart / "files" / "crds").glob(f"*{CRD.split('.', maxsplit=1)[0]}*.yaml"):
        crd = yaml.safe_load(path.read_text())
        spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        spec["properties"]["newField"] = {"type": "string"}
        path.write_text(yaml.safe_dump(crd))
    return chart


def test_installs_and_serves_the_api(site: Site) -> None:
    notes = site.install("disagg", "disagg-system")
    assert "kubectl -n disagg-system rollout status deployment/disagg-disaggregated-inference-operator" in notes
    assert "NOTE: " not in notes
    site.serve()
    assert site.names("dinf") == {"disaggregatedinference.inference.disagg.io/llama"}


def test_a_second_install_of_the_same_is_quiet(site: Site) -> None:
    site.install("disagg", "disagg-system")
    before = site.get("deployment", "-n", "disagg-system")["items"][0]["metadata"]
    site.upgrade("disagg", "disagg-system")
    after = site.get("deployment", "-n", "disagg-system")["items"][0]["metadata"]
    assert before["generation"] == after["generation"]


def test_upgrade_brings_the_new_crd(site: Site, next_chart: Path) -> None:
    """Field case C35."""
    site.install("disagg", "disagg-system")
    site.serve()
    site.upgrade("disagg", "disagg-system", chart=next_chart)
    assert site.knows_new_field()
    site.serve(newField="kept")
    assert site.get("dinf", "llama")["spec"]["newField"] == "kept"


def test_uninstall_leaves_crd_and_resources(site: Site) -> None:
    """Field case C35."""
    site.install("disagg", "disagg-system")
    site.serve()
    told = site.helm.run("uninstall", "disagg", "-n", "disagg-system")
    assert CRD in told
    resource = site.get("dinf", "llama")
    assert "deletionTimestamp" not in resource["metadata"]
    assert "finalizers" not in resource["metadata"]
    left = site.names("all,sa,role,rolebinding,networkpolicy,secret", "-n", "disagg-system")
    assert not {name for name in left if "disagg" in name}
    assert not {name for name in site.names("clusterrole,clusterrolebinding") if "disagg" in name}


def test_install_after_uninstall_takes_the_crd_again(site: Site, next_chart: Path) -> None:
    site.install("disagg", "disagg-system")
    site.helm.run("uninstall", "disagg", "-n", "disagg-system")
    site.install("disagg", "disagg-system", chart=next_chart)
    assert site.knows_new_field()


def test_uninstall_takes_the_crd_if_asked(site: Site) -> None:
    site.install("disagg", "disagg-system", "--set", "crds.keep=false")
    site.helm.run("uninstall", "disagg", "-n", "disagg-system", "--wait", "--timeout", "30s")
    assert CRD in site.kubectl("get", "crd", CRD, ok=False)


@pytest.mark.parametrize("mode", [(), ("--server-side",)], ids=["client-side", "server-side"])
def test_a_crd_applied_with_kubectl_is_left_alone_until_handed_over(
    site: Site, next_chart: Path, mode: tuple[str, ...]
) -> None:
    site.kubectl("apply", *mode, "-f", str(ROOT / "crds"))
    notes = site.install("disagg", "disagg-system", chart=next_chart)
    assert f"NOTE: the definition {CRD} belongs to somebody without Helm" in notes
    assert site.owner() is None
    assert not site.knows_new_field()
    with pytest.raises(HelmError, match="conflict"):
        site.upgrade(
            "disagg", "disagg-system", "--set", "crds.takeOwnership=true", "--take-ownership", chart=next_chart
        )
    site.upgrade("disagg", "disagg-system", "--take-ownership", "--force-conflicts", "--set",
                 "crds.takeOwnership=true", chart=next_chart)  # fmt: skip
    assert site.owner() == "disagg-system/disagg"
    assert site.knows_new_field()


def test_a_second_release_leaves_the_first_ones_crd_alone(site: Site, next_chart: Path) -> None:
    site.install("disagg", "disagg-system")
    notes = site.install("other", "other-system", chart=next_chart)
    assert "belongs to release disagg in namespace disagg-system" in notes
    assert not site.knows_new_field()
    site.helm.run("uninstall", "other", "-n", "other-system")
    assert site.owner() == "disagg-system/disagg"
    assert len({name for name in site.names("clusterrole") if "disagg-system:" in name}) == 3


def test_a_namespaced_install_makes_nothing_of_the_clusters(site: Site) -> None:
    """Field case C98."""
    site.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    for namespace in ("team-a", "team-b"):
        site.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    site.install("disagg", "team-a", "--set", "watchNamespaces={team-a,team-b}", "--set", "crds.install=false")
    assert not {name for name in site.names("clusterrole,clusterrolebinding") if "disagg" in name}
    who = "--as=system:serviceaccount:team-a:disagg-disaggregated-inference-operator"

    def may(*action: str) -> bool:
        done = subprocess.run(
            [str(paths.binary("kubectl")), "--kubeconfig", str(site.kubeconfig), "auth", "can-i", *action, who],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        return done.stdout.strip() == "yes"

    assert may("patch", "deployments.apps", "-n", "team-b")
    assert may("update", "leases.coordination.k8s.io", "-n", "team-a")
    for action in (
        ("list", "dinf", "--all-namespaces"),
        ("get", "secrets", "-n", "team-b"),
        ("list", "pods", "-n", "c"),
    ):
        assert not may(*action), action


def test_users_get_rights_by_the_clusters_own_roles(site: Site) -> None:
    """The view, edit and admin roles are aggregated by a controller that does not run here, so judge the labels."""
    site.install("disagg", "disagg-system")
    roles = site.get("clusterrole", "-l", "rbac.authorization.k8s.io/aggregate-to-view=true")["items"]
    (ours,) = [role for role in roles if "disagg" in role["metadata"]["name"]]
    assert ours["rules"][0]["verbs"] == ["get", "list", "watch"]
