"""Finds the API server: inside a pod by its ServiceAccount, else by kubeconfig."""

import os
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

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
    configuration.proxy = configuration.proxy or find_proxy(configuration.host)
    # Read above, once: with trust_env each call would read it anew in two threads, for half of all that a call costs.
    configuration.client_session_kwargs = {"trust_env": False}
    return KubeClient(ApiClient(configuration), on_call)


def find_proxy(url: str) -> str | None:
    """The proxy that the environment names for a URL, None where it is to be reached without one."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
