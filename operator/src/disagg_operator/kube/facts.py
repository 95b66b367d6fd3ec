"""Asks the API server what the cluster offers: which optional kinds it serves."""

import os

from disagg_operator.build.inputs import ClusterFacts
from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.kinds import LEADER_WORKER_SET, POD_MONITOR, SCALED_OBJECT, SCALER


async def find_facts(client: KubeClient, cluster_domain: str, operator_namespace: str) -> ClusterFacts:
    """What the cluster offers now. Raises ApiError."""
    return ClusterFacts(
        cluster_domain=cluster_domain,
        operator_namespace=operator_namespace,
        # Set in every pod; its form tells the family of the cluster's default Service.
        ip_family="IPv6" if ":" in os.environ.get("KUBERNETES_SERVICE_HOST", "") else "IPv4",
        has_pod_monitor=await client.is_served(POD_MONITOR),
        has_leader_worker_set=await client.is_served(LEADER_WORKER_SET),
        has_scaler=await client.is_served(SCALER),
        has_scaled_object=await client.is_served(SCALED_OBJECT),
    )
