"""`python -m demo up` and `python -m demo down`."""

import argparse
import subprocess
import sys
import time

from demo.ask import ask_and_report
from demo.cluster import NAMESPACE as OPERATOR_NAMESPACE
from demo.cluster import ROOT, Cluster
from demo.kubectl import KubectlError, condition, wait_until
from demo.state import State, forget_state, load_state
from demo.targets import TargetError, close_target, find_target, is_local_up, open_target, wished_target

NAMESPACE = "disagg-demo"
NAME = "smollm"
CRD = "disaggregatedinferences.inference.disagg.io"
SCALER_CRD = "disaggregatedinferencescalers.inference.disagg.io"
START = time.monotonic()


def step(text: str) -> None:
    """Say what happens now, and how long it took so far."""
    print(f"[{time.monotonic() - START:5.0f} s] {text}", flush=True)


def up() -> None:
    """From nothing to an answered question; quick when it is all there."""
    target = wished_target()
    state = load_state() or State(target)
    if state.target != target:
        raise TargetError(f"a demo is up in {state.target}; take it down first with `make demo-down`")
    step(f"cluster and images ({target}); the first time this builds Kubernetes and takes about 20 minutes")
    if target != "local" or not is_local_up():
        state.made_cluster = state.made_cluster or target in ("local", "kind")
        state.save()
    cluster = open_target(target)
    step("operator, by its Helm chart")
    _note_what_will_be_made(cluster, state)
    cluster.install_operator()
    step(f"DisaggregatedInference {NAMESPACE}/{NAME} (examples/smollm.yaml)")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.kubectl.apply(namespace)
    cluster.kubectl.apply_file(ROOT / "examples" / "smollm.yaml", NAMESPACE)
    _wait_ready(cluster)
    step("two questions through the router")
    ask_and_report(cluster, NAMESPACE, NAME)


def down() -> None:
    """Remove what `up` made."""
    state = load_state()
    if state is None:
        print("no demo was made from this checkout; nothing to remove")
        return
    if state.made_cluster:
        step("removing the cluster with all that is in it")
        close_target(state.target)
    else:
        _clear(find_target(state.target), state)
    forget_state()
    step("gone; build caches stay (`make clean-cache` removes them)")


def _note_what_will_be_made(cluster: Cluster, state: State) -> None:
    has_crd = bool(cluster.kubectl.run("get", "crd", CRD, "--ignore-not-found"))
    has_release = bool(cluster.run_helm("list", "-n", OPERATOR_NAMESPACE, "-q").strip())
    has_namespace = bool(cluster.kubectl.run("get", "namespace", NAMESPACE, "--ignore-not-found"))
    state.made_crd = state.made_crd or not has_crd
    state.made_release = state.made_release or not has_release
    state.made_namespace = state.made_namespace or not has_namespace
    state.save()


def _wait_ready(cluster: Cluster) -> None:
    """Wait for Ready, telling every change of its message."""
    said = ""

    def ready() -> bool:
        nonlocal said
        found = condition(cluster.kubectl.get("dinf", NAME, NAMESPACE), "Ready")
        line = f"Ready {found.get('status', 'Unknown')}: {found.get('message', 'not seen by the operator yet')}"
        if line != said:
            step(line)
            said = line
        return found.get("status") == "True"

    wait_until(ready, timeout=1200, what=f"{NAME} is Ready")


def _clear(cluster: Cluster, state: State) -> None:
    step("removing the DisaggregatedInference")
    cluster.kubectl.run("delete", "dinf", NAME, "-n", NAMESPACE, "--ignore-not-found", "--wait=true")
    if state.made_namespace:
        cluster.kubectl.run("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true", timeout=300)
    if state.made_release:
        step("uninstalling the operator")
        cluster.uninstall_operator()
        cluster.kubectl.run("delete", "namespace", OPERATOR_NAMESPACE, "--ignore-not-found", "--wait=true", timeout=300)
    if state.made_crd:
        left = cluster.kubectl.run("get", "dinf", "-A", "-o", "name").split()
        if left:
            step(f"the CRD stays: {len(left)} DisaggregatedInference(s) of somebody are still there")
        else:
            cluster.kubectl.run("delete", "crd", CRD, SCALER_CRD, "--ignore-not-found")


def main() -> int:
    """Run the command and turn expected failures into one clear line."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("command", choices=["up", "down"])
    try:
        {"up": up, "down": down}[parser.parse_args().command]()
    except subprocess.CalledProcessError as error:
        # The tool that failed has said why.
        print(f"demo: `{' '.join(map(str, error.cmd[1:]))}` failed; see above", file=sys.stderr)
        return 1
    except (TargetError, KubectlError, RuntimeError, TimeoutError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
