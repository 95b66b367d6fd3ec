"""The pod network: one bridge with the node's address on it. Everything here is made by `up` and removed by `down`.

The bridge carries a mark, its alias. One of the same name without the mark is somebody else's, and is left alone.
"""

import json
import subprocess
from pathlib import Path

from cluster.errors import ClusterError

BRIDGE = "cni0"
NODE_ADDRESS = "10.244.0.1"
POD_RANGE = "10.244.0.0/24"
SERVICE_RANGE = "10.96.0.0/16"
_MARK = "disagg-cluster"
CONTAINMENT = f"""\
table inet {_MARK} {{
    chain forward {{
        type filter hook forward priority filter; policy accept;
        iifname "{BRIDGE}" oifname != "{BRIDGE}" reject with icmpx admin-prohibited
    }}
}}
"""
"""Pods talk to each other and to this machine. What is meant for elsewhere is refused at once, not sent unanswered."""

_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def run(*command: str) -> str:
    """Run a command. Raises CalledProcessError."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def links() -> list[dict[str, object]]:
    """All network interfaces, as `ip` tells them."""
    found: list[dict[str, object]] = json.loads(run("ip", "-json", "link"))
    return found


def is_ours(link: dict[str, object]) -> bool:
    """Whether an interface is the bridge that `up` made."""
    return link["ifname"] == BRIDGE and link.get("ifalias") == _MARK


def exists() -> bool:
    """Whether our bridge is there."""
    return any(is_ours(link) for link in links())


def up() -> None:
    """Make the bridge where it is missing, and let the kernel forward. Raises ClusterError for a foreign bridge."""
    same_name = [link for link in links() if link["ifname"] == BRIDGE]
    if same_name and not is_ours(same_name[0]):
        raise ClusterError(
            f"the interface {BRIDGE} belongs to another cluster of this machine; this one needs that name. "
            f"If nothing uses it, `ip link delete {BRIDGE}` removes it"
        )
    if not same_name:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "link", "set", BRIDGE, "alias", _MARK)
    addresses = run("ip", "-brief", "address", "show", "dev", BRIDGE)
    if NODE_ADDRESS not in addresses:
        run("ip", "address", "add", f"{NODE_ADDRESS}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    # Services work on a machine without a default route, and a Service without pods is asked nowhere else.
    run("ip", "route", "replace", SERVICE_RANGE, "dev", BRIDGE)
    subprocess.run(["nft", "-f", "-"], input=CONTAINMENT, check=True, capture_output=True, text=True)
    _FORWARD.write_text("1\n")


def down() -> None:
    """Remove the bridge, what hangs on it, and kube-proxy's nft tables."""
    if exists():
        for link in links():
            if link.get("master") == BRIDGE:
                # May be gone by now: its other end went with a pod's namespace.
                subprocess.run(["ip", "link", "delete", str(link["ifname"])], check=False, capture_output=True)
        run("ip", "link", "delete", BRIDGE)
    for table in (("inet", _MARK), ("ip", "kube-proxy"), ("ip6", "kube-proxy")):
        subprocess.run(["nft", "delete", "table", *table], check=False, capture_output=True)


def cni_config(state: Path) -> str:
    """The CNI configuration: pods on the bridge, addresses from the pod range."""
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(state / "cni-addresses"),
            "ranges": [[{"subnet": POD_RANGE, "rangeStart": "10.244.0.10", "gateway": NODE_ADDRESS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "disagg", "plugins": [bridge]}, indent=2)
