"""Alerts and dashboard: every metric in them exists, every alert has its section in the docs."""

import json
import re
from collections.abc import Iterator

import pytest
from chart.helm import ROOT, Helm, Manifest, case_values, of_kind
from disagg_operator.metrics import Metrics as OperatorMetrics
from disagg_router.metrics import Metrics as RouterMetrics
from prometheus_client import CollectorRegistry

# Of vLLM 0.32; the engines' own, which this project does not define.
VLLM = {
    "vllm:external_prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
}
_METRIC = re.compile(r"\b(?:disagg_router|disaggregatedinference|vllm:)[a-z_:]*[a-z]")


def exported(registry: CollectorRegistry) -> Iterator[str]:
    """Names of the time series that a registry gives to Prometheus."""
    for family in registry.collect():
        yield family.name + ("_total" if family.type == "counter" else "")
        if family.type == "histogram":
            yield from (f"{family.name}_{part}" for part in ("bucket", "count", "sum"))


@pytest.fixture(scope="module")
def manifests(helm: Helm) -> list[Manifest]:
    return helm.template(values=case_values("monitoring"))


@pytest.fixture(scope="module")
def rules(manifests: list[Manifest]) -> list[Manifest]:
    (found,) = of_kind(manifests, "PrometheusRule")
    return [rule for group in found["spec"]["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def dashboard(manifests: list[Manifest]) -> Manifest:
    (found,) = of_kind(manifests, "ConfigMap")
    (text,) = found["data"].values()
    loaded: Manifest = json.loads(text)
    return loaded


def test_every_metric_exists(rules: list[Manifest], dashboard: Manifest) -> None:
    known = {*exported(OperatorMetrics().registry), *exported(RouterMetrics().registry), *VLLM}
    queries = [rule["expr"] for rule in rules]
    queries += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"]["query"] for variable in dashboard["templating"]["list"][1:]]
    named = {name for query in queries for name in _METRIC.findall(query)}
    assert named
    assert named <= known, named - known


def test_requests_without_any_transfer_are_an_alert(rules: list[Manifest]) -> None:
    """Field case C100: prefill and decode are there and Ready, and nothing goes from one to the other."""
    (rule,) = [rule for rule in rules if rule["alert"] == "DisaggNothingShared"]
    requests, _, transfers = rule["expr"].partition("unless")
    assert 'disagg_router_requests_total{route="pd"}' in requests
    # Where no engine has a connector this counter is not there at all, and `unless` holds nothing back.
    assert "vllm:external_prefix_cache_hits_total" in transfers


def test_every_alert_has_a_runbook(rules: list[Manifest]) -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    sections = {line.lstrip("#").strip() for line in text.splitlines() if line.startswith("#")}
    for rule in rules:
        assert rule["alert"] in sections
        assert rule["annotations"]["runbook_url"].endswith(f"#{rule['alert'].lower()}")
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_without_a_base_there_are_no_runbook_links(helm: Helm) -> None:
    values = {"registry": "registry.example.com/team", "metrics": {"prometheusRule": {"enabled": True}}}
    (found,) = of_kind(helm.template(values=values), "PrometheusRule")
    assert "runbook_url" not in json.dumps(found)


def test_the_monitor_finds_the_metrics_service(manifests: list[Manifest]) -> None:
    (monitor,) = of_kind(manifests, "ServiceMonitor")
    (service,) = of_kind(manifests, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {one["port"] for one in monitor["spec"]["endpoints"]} == {port["name"] for port in service["spec"]["ports"]}
