"""The rendered chart passes every rule, and every rule can fail."""

import copy
from collections.abc import Callable

import pytest
from chart import rubric
from chart.helm import CASE_NAMES, Helm, Manifest, case_values, of_kind

# Cases that ask for what a rule forbids: there the user has taken it on.
EXCUSED = {("bring-your-own", rubric.service_accounts_exist)}


@pytest.mark.parametrize("case", CASE_NAMES)
@pytest.mark.parametrize("rule", rubric.RULES, ids=lambda rule: rule.__name__)
def test_passes(helm: Helm, case: str, rule: rubric.Rule) -> None:
    findings = list(rule(helm.template(values=case_values(case))))
    assert bool(findings) == ((case, rule) in EXCUSED), findings


def _container(deployment: Manifest) -> Manifest:
    container: Manifest = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


Break = Callable[[Manifest], object]
BREAKS: dict[rubric.Rule, tuple[str, Break]] = {
    rubric.has_recommended_labels: ("Deployment", lambda one: one["metadata"]["labels"].clear()),
    rubric.selector_matches_template: (
        "Deployment",
        lambda one: one["spec"]["selector"]["matchLabels"].update({"app": "other"}),
    ),
    rubric.selectors_do_not_move: (
        "Deployment",
        lambda one: one["spec"]["selector"]["matchLabels"].update({"app.kubernetes.io/version": "1"}),
    ),
    rubric.services_have_pods_and_ports: (
        "Service",
        lambda one: one["spec"]["ports"][0].update(targetPort="web"),
    ),
    rubric.policies_and_budgets_have_pods: (
        "NetworkPolicy",
        lambda one: one["spec"]["podSelector"]["matchLabels"].update({"app": "other"}),
    ),
    rubric.no_budget_for_a_single_pod: ("Deployment", lambda one: one["spec"].update(replicas=1)),
    rubric.probes_name_ports: ("Deployment", lambda one: _container(one)["ports"].clear()),
    rubric.images_are_named_and_fixed: ("Deployment", lambda one: _container(one).update(image="a.example:5000/b")),
    rubric.resources_are_set: ("Deployment", lambda one: _container(one)["resources"].pop("limits")),
    rubric.meets_restricted: (
        "Deployment",
        lambda one: _container(one)["securityContext"].update(readOnlyRootFilesystem=False),
    ),
    rubric.environment_is_clean: (
        "Deployment",
        lambda one: _container(one)["env"].append({"name": "HF_TOKEN", "value": "x"}),
    ),
    rubric.writes_only_where_mounted: ("Deployment", lambda one: one["spec"]["template"]["spec"]["volumes"].clear()),
    rubric.pods_spread: (
        "Deployment",
        lambda one: one["spec"]["template"]["spec"].pop("topologySpreadConstraints"),
    ),
    rubric.service_accounts_exist: ("ServiceAccount", lambda one: one["metadata"].update(name="other")),
    rubric.bindings_fit: ("ClusterRoleBinding", lambda one: one["roleRef"].update(name="other")),
    rubric.rights_are_narrow: ("Role", lambda one: one["rules"].append({"apiGroups": [""], "verbs": ["*"]})),
}


@pytest.mark.parametrize("rule", rubric.RULES, ids=lambda rule: rule.__name__)
def test_a_broken_manifest_is_found(helm: Helm, rule: rubric.Rule) -> None:
    manifests = helm.template(values=case_values("high-availability"))
    kind, spoil = BREAKS[rule]
    broken = copy.deepcopy(manifests)
    spoil(of_kind(broken, kind)[0])
    assert not list(rule(manifests))
    assert list(rule(broken))
