"""Finds the API server: inside a pod by its ServiceAccount, else by kubeconfig."""

import os

from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from disagg_operator.kube.client import KubeClient, Observer


async def connect(on_call: Observer, kubeconfig: str | None = None) -> KubeClient:
    """A client of this process's cluster, or of that of a kubeconfig. Raises kubernetes' ConfigException."""
    configuration = Configuration()
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
        config.load_incluster_config(client_configuration=configuration)
    else:
        await config.load_kube_config(kubeconfig, client_configuration=configuration)
    configuration.connection_pool_maxsize = 32
    return KubeClient(ApiClient(configuration), on_call)
