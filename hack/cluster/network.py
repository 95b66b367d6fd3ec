"""The pod network: one bridge with the node's address on it. Everything here is made by `up` and removed by `down`."""

import json
import subprocess
from pathlib import Path

BRIDGE = "cni0"
NODE_ADDRESS = "10.244.0.1"
POD_RANGE = "10.244.0.0/24"
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def run(*command: str) -> str:
    """Run a command. Raises CalledProcessError."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def links() -> list[dict[str, object]]:
    """All network interfaces, as `ip` tells them."""
    found: list[dict[str, object]] = json.loads(run("ip", "-json", "link"))
    return found


def up(state: Path) -> None:
    """Make the bridge where it is missing, and let the kernel forward. What forwarding was is kept for `down`."""
    if not any(link["ifname"] == BRIDGE for link in links()):
        run("ip", "link", "add", BRIDGE, "type", "bridge")
    addresses = run("ip", "-brief", "address", "show", "dev", BRIDGE)
    if NODE_ADDRESS not in addresses:
        run("ip", "address", "add", f"{NODE_ADDRESS}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    kept = state / "ip_forward"
    if not kept.exists():
        kept.write_text(_FORWARD.read_text())
    _FORWARD.write_text("1\n")


def down(state: Path) -> None:
    """Remove the bridge, what hangs on it, and kube-proxy's nft tables; put forwarding back."""
    for link in links():
        if link.get("master") == BRIDGE:
            subprocess.run(["ip", "link", "delete", str(link["ifname"])], check=False, capture_output=True)
    if any(link["ifname"] == BRIDGE for link in links()):
        run("ip", "link", "delete", BRIDGE)
    for family in ("ip", "ip6"):
        subprocess.run(["nft", "delete", "table", family, "kube-proxy"], check=False, capture_output=True)
    kept = state / "ip_forward"
    if kept.exists():
        _FORWARD.write_text(kept.read_text())
        kept.unlink()


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
