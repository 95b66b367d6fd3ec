"""The operator's client, against a real API server."""

import pytest
from api.manifests import resource
from api.operator_runs.site import Site
from disagg_operator.kube.connect import connect
from disagg_operator.kube.kinds import RESOURCE, Kind


@pytest.mark.parametrize("page", [1, 2, 3, 100])
async def test_a_walk_brings_every_page(site: Site, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr("disagg_operator.kube.client._PAGE", page)
    for name in ("ma", "mb", "mc"):
        site.apply(resource(name))
    calls: list[str] = []
    client = await connect(lambda verb, code: calls.append(verb), str(site.server.kubeconfig))
    async with client:
        found = [item["metadata"]["name"] async for item in client.walk(RESOURCE, site.namespace)]
        assert found == ["ma", "mb", "mc"]
        assert len(calls) == -(-3 // page)
        unknown = Kind("inference.disagg.io/v1alpha1", "Unknown", "unknowns")
        assert [item async for item in client.walk(unknown, "")] == []
