"""What the chart renders: lint, golden manifests of several sets of values, and the CRD as it is in crds/."""

import difflib
import json

import kubernetes_validate  # type: ignore[import-untyped]  # it ships no types
import pytest
import yaml
from chart.helm import CASE_NAMES, CASES, CHART, ROOT, Helm, Manifest, case_values, of_kind
from disagg_operator.settings import read_settings


def dump(manifests: list[Manifest]) -> str:
    """Manifests as text in a fixed order, without the CRD, which has a test of its own."""
    kept = [manifest for manifest in manifests if manifest["kind"] != "CustomResourceDefinition"]
    kept.sort(key=lambda one: (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]))
    return yaml.safe_dump_all(kept, sort_keys=True, width=110)


@pytest.mark.parametrize("case", CASE_NAMES)
def test_lint_finds_nothing(helm: Helm, case: str) -> None:
    helm.run("lint", "--strict", str(CHART), "--values", str(CASES / case / "values.yaml"))


def test_lint_finds_nothing_in_the_bare_chart(helm: Helm) -> None:
    helm.run("lint", "--strict", str(CHART))


@pytest.mark.parametrize("case", CASE_NAMES)
def test_renders_as_recorded(helm: Helm, case: str, update_golden: bool) -> None:
    expected = CASES / case / "expected.yaml"
    found = dump(helm.template(values=case_values(case)))
    if update_golden:
        expected.write_text(found)
    wanted = expected.read_text()
    difference = "".join(difflib.unified_diff(wanted.splitlines(True), found.splitlines(True), "recorded", "rendered"))
    assert not difference, difference


@pytest.mark.parametrize("case", CASE_NAMES)
def test_every_manifest_is_valid(helm: Helm, case: str) -> None:
    for manifest in helm.template(values=case_values(case)):
        if "monitoring.coreos.com" in manifest["apiVersion"]:
            continue  # kinds of the Prometheus operator, whose schemas are not Kubernetes'
        kubernetes_validate.validate(manifest, "1.37", strict=True)


def test_the_crd_is_the_one_in_crds(helm: Helm) -> None:
    rendered = of_kind(helm.template(values=case_values("defaults")), "CustomResourceDefinition")
    sources = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    assert sources
    assert [crd["metadata"]["name"] for crd in rendered] == [crd["metadata"]["name"] for crd in sources]
    for crd, source in zip(rendered, sources, strict=True):
        # As JSON, so that a number that became a float, or a text that became a number, shows.
        assert json.dumps(crd["spec"], sort_keys=True) == json.dumps(source["spec"], sort_keys=True)
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_crd_can_go_at_uninstall_if_asked(helm: Helm) -> None:
    values = case_values("defaults") | {"crds": {"keep": False}}
    crds = of_kind(helm.template(values=values), "CustomResourceDefinition")
    assert len(crds) == 2
    for crd in crds:
        assert "helm.sh/resource-policy" not in crd["metadata"].get("annotations", {})


def test_no_crd_if_asked(helm: Helm) -> None:
    values = case_values("defaults") | {"crds": {"install": False}}
    assert not of_kind(helm.template(values=values), "CustomResourceDefinition")


def test_a_namespaced_install_has_no_cluster_rights(helm: Helm) -> None:
    """Field case C98."""
    manifests = helm.template(values=case_values("namespaced"))
    assert not of_kind(manifests, "ClusterRole", "ClusterRoleBinding")
    namespaces = {role["metadata"]["namespace"] for role in of_kind(manifests, "Role")}
    assert namespaces == {"disagg-system", "team-a", "team-b"}


def test_one_release_name_in_two_namespaces_shares_no_cluster_object(helm: Helm) -> None:
    def cluster_names(namespace: str) -> set[str]:
        manifests = helm.template("--namespace", namespace, values=case_values("defaults"))
        return {one["metadata"]["name"] for one in of_kind(manifests, "ClusterRole", "ClusterRoleBinding")}

    assert not cluster_names("team-a") & cluster_names("team-b")


def test_two_releases_in_one_namespace_have_a_leader_each(helm: Helm) -> None:
    """With one Lease for both, the second would wait for ever, and say nothing."""

    def lease(release: str) -> str:
        text = helm.run("template", release, str(CHART), "--set", "registry=registry.example.com/team")
        (deployment,) = of_kind([one for one in yaml.safe_load_all(text) if one], "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        return read_settings(container["args"]).lease_name

    assert lease("a") != lease("b")


def test_names_stay_legal_under_a_long_release_name(helm: Helm) -> None:
    release = "r" * 53  # helm's own limit
    text = helm.run("template", release, str(CHART), "--set", "registry=registry.example.com/team")
    for manifest in yaml.safe_load_all(text):
        if manifest and manifest["kind"] not in {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}:
            assert len(manifest["metadata"]["name"]) <= 63
            for value in manifest["metadata"]["labels"].values():
                assert len(value) <= 63


@pytest.mark.parametrize("case", CASE_NAMES)
def test_the_operator_takes_its_flags(helm: Helm, case: str) -> None:
    """The chart and the operator are written apart; this is where they meet."""
    values = case_values(case)
    (deployment,) = of_kind(helm.template(values=values), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = read_settings(container["args"])
    assert settings.leader_elect
    assert settings.watch_namespaces == tuple(values.get("watchNamespaces", []))
    assert settings.cluster_domain == values.get("clusterDomain", "cluster.local")
    images = settings.pins.images
    assert images.store
    assert images.router
    assert images.engine_cuda or images.engine_cpu
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"metrics": settings.metrics_port, "health": settings.health_port}
    assert {"POD_NAME", "POD_NAMESPACE"} <= {one["name"] for one in container["env"]}
