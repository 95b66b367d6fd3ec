"""Once settled, nothing is written: not by time, not by a restart, not by a new operator. And who may write at all."""

import signal
import time
import urllib.request

from api.manifests import resource
from api.operator_runs.site import PARTS, Operator, Site, holds_for
from disagg_operator.kube import rights
from prometheus_client.parser import text_string_to_metric_families
from router.programs import eventually


def settle(site: Site, name: str = "llama") -> None:
    site.apply(resource(name))
    site.wait_built(name)
    site.serve(name)
    site.wait_condition(name, "Ready", "True")
    site.wait_quiet(name)


def count(operator: Operator, metric: str, **labels: str) -> float:
    """Sum of a metric's samples with these labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.metrics_port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == metric and labels.items() <= sample.labels.items()
    )


def test_a_settled_resource_is_looked_at_and_not_written(site: Site) -> None:
    with site.operator("--resync-seconds=1") as operator:
        settle(site)
        writes, looks = len(site.writes()), count(operator, "disaggregatedinference_reconcile_total")
        versions = site.versions("llama")
        eventually(lambda: count(operator, "disaggregatedinference_reconcile_total") >= looks + 5, "five resyncs")
        assert site.writes()[writes:] == []
        assert site.versions("llama") == versions
        assert count(operator, "disaggregatedinference_reconcile_total", result="error") == 0


def test_a_restart_writes_nothing(site: Site) -> None:
    with site.operator():
        settle(site)
    writes, version = len(site.writes()), site.live("dinf", "llama")["metadata"]["resourceVersion"]
    with site.operator() as second:
        reconciled = "disaggregatedinference_reconcile_total"
        eventually(lambda: is_up(second) and count(second, reconciled, result="done") > 0, "it has looked")
        time.sleep(1)
    assert site.writes()[writes:] == []
    assert site.live("dinf", "llama")["metadata"]["resourceVersion"] == version


def is_up(operator: Operator) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{operator.health_port}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_new_operator_restarts_no_engine_until_its_user_says_so(site: Site) -> None:
    with site.operator():
        settle(site)
    before = {part: site.live("deployments", f"llama-{part}") for part in PARTS}
    new = {"engine-image-cuda": "engine:2", "store": "store:2", "router": "router:2"}
    with site.operator(images=new):
        site.wait_condition("llama", "UpdateAvailable", "True", "OperatorDefaultsChanged")
        assert {part: site.live("deployments", f"llama-{part}") for part in PARTS} == before
        site.apply(resource("llama", decode={"replicas": 2}))
        eventually(lambda: site.live("deployments", "llama-decode")["spec"]["replicas"] == 2, "it is scaled")
        site.wait_quiet("llama")
        assert images_of(site) == {"engine:1", "store:1", "router:1"}, "a count is no reason to take up new images"
        site.apply(resource("llama", decode={"replicas": 2}, restart="now"))
        eventually(lambda: images_of(site) == {"engine:2", "store:2", "router:2"}, "the new images are taken up")
        site.wait_condition("llama", "UpdateAvailable", "False", "UpToDate")


def images_of(site: Site) -> set[str]:
    return {
        container["image"]
        for part in PARTS
        for container in site.live("deployments", f"llama-{part}")["spec"]["template"]["spec"]["containers"]
    }


def test_new_defaults_that_a_resource_does_not_use_are_no_update_for_it(site: Site) -> None:
    with site.operator():
        settle(site)
    with site.operator(images={"engine-image-cpu": "engine-cpu:2"}) as second:
        reconciled = "disaggregatedinference_reconcile_total"
        eventually(lambda: is_up(second) and count(second, reconciled, result="done") > 0, "it has looked")
        site.wait_condition("llama", "UpdateAvailable", "False", "UpToDate")


def test_old_records_are_kept_up_to_the_limit(site: Site, operator: Operator) -> None:
    for restart in range(5):
        site.apply(resource("llama", restart=f"r{restart}", revisionHistoryLimit=2))
        site.wait_status("llama")

    def records() -> list[int]:
        children = site.children("llama")
        return sorted(child["revision"] for (kind, _), child in children.items() if kind == "controllerrevisions")

    eventually(lambda: records() == [3, 4, 5], "the newest and two before it")


def test_it_writes_only_what_its_table_of_rights_has(site: Site, operator: Operator) -> None:
    settle(site)
    site.apply(resource("llama", prefill={"replicas": 2}))
    eventually(lambda: ("poddisruptionbudgets", "llama-prefill") in site.children("llama"), "a budget comes")
    site.apply(resource("llama"))
    eventually(lambda: ("poddisruptionbudgets", "llama-prefill") not in site.children("llama"), "and goes")
    used = {
        (ref.get("apiGroup", ""), ref["resource"] + (f"/{ref['subresource']}" if "subresource" in ref else ""), verb)
        for ref, verb in ((event["objectRef"], event["verb"]) for event in site.writes())
    }
    granted = {
        (right.group, resource, verb)
        for right in rights.NAMESPACED
        for resource in right.resources
        for verb in right.verbs
    }
    assert used <= granted
    # Patching creates, so `create` is not seen in the log; the rest of the writing verbs must be of use.
    verbs = {verb for _, _, verb in used}
    assert verbs == {"create", "patch", "delete"}
    assert ("", "events", "create") in used
    assert "forbidden" not in operator.log.lower()


def neighbour(site: Site, suffix: str) -> Site:
    """Another namespace."""
    other = Site(site.server, site.rest, f"{site.namespace}-{suffix}", site.directory)
    site.must("POST", "/api/v1/namespaces", {"metadata": {"name": other.namespace}})
    return other


def test_it_works_everywhere_with_cluster_wide_rights(site: Site) -> None:
    home, other = neighbour(site, "home"), neighbour(site, "other")
    home.grant_everywhere()
    with home.operator(everywhere=True) as operator:
        for place in (site, other):
            place.apply(resource("llama"))
            place.wait_built("llama")
        assert "forbidden" not in operator.log.lower()
        assert is_up(operator)


def test_another_namespace_is_left_alone(site: Site, operator: Operator) -> None:
    """Field case C98: rights in one namespace suffice, and what is elsewhere is not asked for."""
    other = neighbour(site, "other")
    other.apply(resource("llama"))
    site.apply(resource("llama"))
    site.wait_built("llama")
    assert holds_for(lambda: not other.children("llama"), 1)
    assert other.live("dinf", "llama")["status"] == {"observedGeneration": -1}
    assert "forbidden" not in operator.log.lower()


def test_one_of_two_leads_and_the_other_takes_over(site: Site) -> None:
    with site.operator("--leader-elect") as first:
        eventually(lambda: is_up(first) and count(first, "disaggregatedinference_leader") == 1, "the first leads")
        with site.operator("--leader-elect") as second:
            eventually(lambda: is_up(second), "the second waits")
            site.apply(resource("llama"))
            site.wait_built("llama")
            assert count(second, "disaggregatedinference_leader") == 0
            assert count(second, "disaggregatedinference_reconcile_total") == 0
            first.program.end()
            site.apply(resource("llama", decode={"replicas": 2}))
            eventually(lambda: site.live("deployments", "llama-decode")["spec"]["replicas"] == 2, "it takes over", 60)
            assert count(second, "disaggregatedinference_leader") == 1


def test_it_ends_in_order_when_asked_and_lets_the_lease_go(site: Site) -> None:
    with site.operator("--leader-elect") as operator:
        site.apply(resource("llama"))
        site.wait_built("llama")
        operator.program.send(signal.SIGTERM)
        assert operator.program.wait(20) == 0
    lease = site.must(
        "GET",
        f"/apis/coordination.k8s.io/v1/namespaces/{site.namespace}/leases/disaggregated-inference-operator",
    )
    assert lease["spec"].get("holderIdentity", "") == ""


def test_metrics_tell_what_it_does(site: Site, operator: Operator) -> None:
    settle(site)
    labels = {"namespace": site.namespace, "name": "llama"}
    conditions = "disaggregatedinference_condition"
    assert count(operator, conditions, **labels, type="Ready", status="True") == 1
    assert count(operator, conditions, **labels, type="Ready", status="False") == 0
    assert count(operator, "disaggregatedinference_replicas", **labels, role="decode", kind="ready") == 1
    assert count(operator, "disaggregatedinference_api_requests_total", verb="PATCH", code="201") > 0
    assert count(operator, "disaggregatedinference_queue_latency_seconds_count") > 0
    site.delete("dinf", "llama")
    eventually(lambda: count(operator, conditions, **labels) == 0, "gauges of what is gone go too")
