"""The one node: containerd, kubelet, kube-proxy, and CoreDNS beside them, all with configuration of our own."""

import shutil
from pathlib import Path

import yaml

from cluster import cgroups, network, paths, registry
from cluster.control_plane import Plane
from cluster.errors import ClusterError
from cluster.processes import Program

NAME = "disagg-local"
SOCKET = paths.RUN / "containerd.sock"
PAUSE = f"{registry.ADDRESS}/disagg/pause:1"
_CNI_PLUGINS = Path("/usr/lib/cni")
_DNS_PORT = 53


def containerd_config() -> str:
    """containerd's configuration. Without restrict_oom_score_adj, pods die where root may not lower that score."""
    return f"""\
version = 3
root = "{paths.STATE}/containerd"
state = "{paths.RUN}/containerd"

[grpc]
  address = "{SOCKET}"

[ttrpc]
  address = "{SOCKET}.ttrpc"

[plugins."io.containerd.nri.v1.nri"]
  disable = true

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE}"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{paths.STATE}/registries"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{_CNI_PLUGINS}"]
    conf_dir = "{paths.STATE}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
        Root = "{paths.RUN}/runc"
"""


def kubelet_config(plane: Plane) -> dict[str, object]:
    """kubelet's configuration: pods below our own cgroup, no eviction by a disk that is everybody's."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.NODE_ADDRESS,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(plane.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroups.NAME}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        # kube-proxy needs none of kubelet's iptables chains in nftables mode, and nothing would remove them.
        "makeIPTablesUtilChains": False,
        "podLogsDir": str(paths.STATE / "pod-logs"),
        "clusterDomain": "cluster.local",
        "clusterDNS": [network.NODE_ADDRESS],
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "200Mi"},
        "readOnlyPort": 0,
        "registerNode": True,
        "resolvConf": "/dev/null",
        "volumePluginDir": str(paths.STATE / "kubelet-plugins"),
        "serializeImagePulls": False,
        "maxParallelImagePulls": 3,
    }


def kube_proxy_config(plane: Plane) -> dict[str, object]:
    """kube-proxy's configuration. Everything is masqueraded: replies between pods of one bridge would bypass NAT."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": network.POD_RANGE,
        "hostnameOverride": NAME,
        "bindAddress": network.NODE_ADDRESS,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clientConnection": {"kubeconfig": str(plane.kubeconfig("kube-proxy"))},
        "nftables": {"masqueradeAll": True},
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def corefile(plane: Plane) -> str:
    """CoreDNS' configuration: the cluster's names, and nothing of the world outside."""
    return f"""\
.:{_DNS_PORT} {{
    bind {network.NODE_ADDRESS}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {plane.kubeconfig("coredns")}
        pods insecure
        ttl 5
    }}
    cache 5
}}
"""


def write_files(plane: Plane) -> None:
    """All configuration files of the node."""
    state = paths.STATE
    (state / "cni").mkdir(parents=True, exist_ok=True)
    (state / "cni" / "10-disagg.conflist").write_text(network.cni_config(state))
    hosts = state / "registries" / registry.ADDRESS
    hosts.mkdir(parents=True, exist_ok=True)
    (hosts / "hosts.toml").write_text(f'server = "http://{registry.ADDRESS}"\n')
    (state / "containerd.toml").write_text(containerd_config())
    (state / "kubelet.yaml").write_text(yaml.safe_dump(kubelet_config(plane)))
    (state / "kube-proxy.yaml").write_text(yaml.safe_dump(kube_proxy_config(plane)))
    (state / "Corefile").write_text(corefile(plane))


def find_missing() -> list[str]:
    """OS programs that the node needs and that are not installed."""
    missing = [name for name in ("runc", "nft", "ip", "buildah", "conntrack") if shutil.which(name) is None]
    return missing if (_CNI_PLUGINS / "bridge").exists() else [*missing, "containernetworking-plugins"]


def check_prerequisites() -> None:
    """Raise ClusterError unless the node can be started."""
    if missing := find_missing():
        raise ClusterError(f"not installed: {', '.join(missing)}; `hack/setup.sh` installs what is missing")


def containerd() -> Program:
    """containerd. Its shim must be on PATH."""
    path = f"{paths.binaries()}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    argv = [str(paths.binary("containerd")), "--config", str(paths.STATE / "containerd.toml")]
    return Program("containerd", argv, env={"PATH": path})


def kubelet(plane: Plane) -> Program:
    """kubelet."""
    argv = [
        str(paths.binary("kubelet")),
        f"--config={paths.STATE / 'kubelet.yaml'}",
        f"--kubeconfig={plane.kubeconfig('kubelet')}",
        f"--root-dir={paths.STATE / 'kubelet'}",
        f"--cert-dir={paths.STATE / 'kubelet-pki'}",
        f"--hostname-override={NAME}",
        f"--node-ip={network.NODE_ADDRESS}",
    ]
    return Program("kubelet", argv)


def kube_proxy() -> Program:
    """kube-proxy, in nftables mode."""
    return Program("kube-proxy", [str(paths.binary("kube-proxy")), f"--config={paths.STATE / 'kube-proxy.yaml'}"])


def coredns() -> Program:
    """CoreDNS, as a process of the host on the bridge's address."""
    return Program("coredns", [str(paths.binary("coredns")), "-conf", str(paths.STATE / "Corefile")])
