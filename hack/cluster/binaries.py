"""Builds the binaries from their Go modules, each one only when what it is made from has changed.

Every module is a small go.mod with `tool` lines; its go.sum pins each source byte. A stamp beside a binary holds a
digest of all that decides it, so a second build only reads stamps.
"""

import hashlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster import gotool, paths
from cluster.errors import ClusterError
from cluster.locks import exclusive

_PROGRESS_EVERY = 20.0
"""Seconds between two lines of progress."""


@dataclass(frozen=True)
class Module:
    """One Go module under tools/. `binaries` maps a binary's name to its package, `versions` a variable to a module."""

    name: str
    binaries: Mapping[str, str]
    versions: Mapping[str, str]
    tags: str = ""
    is_optional: bool = False


_K8S = "k8s.io/kubernetes"
_KEDA = "github.com/kedacore/keda/v2"
_CONTAINERD = "github.com/containerd/containerd/v2"
MODULES = (
    Module(
        "kubernetes",
        {
            "kube-apiserver": f"{_K8S}/cmd/kube-apiserver",
            "etcd": "go.etcd.io/etcd/server/v3",
            "kubectl": f"{_K8S}/cmd/kubectl",
            "kube-controller-manager": f"{_K8S}/cmd/kube-controller-manager",
            "kube-scheduler": f"{_K8S}/cmd/kube-scheduler",
            "kubelet": f"{_K8S}/cmd/kubelet",
            "kube-proxy": f"{_K8S}/cmd/kube-proxy",
        },
        # Without it kubectl refuses the server's version.
        {"k8s.io/component-base/version.gitVersion": _K8S, "k8s.io/client-go/pkg/version.gitVersion": _K8S},
    ),
    Module(
        "helm",
        {"helm": "helm.sh/helm/v4/cmd/helm"},
        {"helm.sh/helm/v4/internal/version.version": "helm.sh/helm/v4"},
    ),
    Module(
        "containerd",
        {
            "containerd": f"{_CONTAINERD}/cmd/containerd",
            "containerd-shim-runc-v2": f"{_CONTAINERD}/cmd/containerd-shim-runc-v2",
            "ctr": f"{_CONTAINERD}/cmd/ctr",
        },
        {f"{_CONTAINERD}/version.Version": _CONTAINERD},
        tags="no_btrfs,no_zfs,no_devmapper",
    ),
    Module("coredns", {"coredns": "github.com/coredns/coredns"}, {}),
    # One module for all of them: they share most of what they are made from, and that is compiled once.
    Module(
        "autoscaling",
        {
            "metrics-server": "sigs.k8s.io/metrics-server/cmd/metrics-server",
            "keda": f"{_KEDA}/cmd/operator",
            "keda-adapter": f"{_KEDA}/cmd/adapter",
            "keda-admission-webhooks": f"{_KEDA}/cmd/webhooks",
        },
        {},
        is_optional=True,
    ),
    # KEDA needs github.com/gobwas/glob 1.0, with which Prometheus does not build.
    Module(
        "prometheus",
        {"prometheus": "github.com/prometheus/prometheus/cmd/prometheus"},
        {},
        # Prometheus asks Kubernetes what to scrape, and no cloud.
        tags="remove_all_sd,enable_kubernetes_sd",
        is_optional=True,
    ),
)

GROUPS: Mapping[str, tuple[str, ...]] = {
    "cluster": tuple(name for module in MODULES if not module.is_optional for name in module.binaries),
    "optional": tuple(name for module in MODULES if module.is_optional for name in module.binaries),
    "kubernetes-control-plane": ("kube-apiserver", "etcd", "kubectl", "kube-controller-manager"),
    **{module.name: tuple(module.binaries) for module in MODULES},
}
"""What `--only` may name."""


def required_version(go_mod: str, module: str) -> str:
    """The version at which a go.mod requires a module. Raises ClusterError when it does not."""
    for line in go_mod.splitlines():
        words = line.removeprefix("require ").split()
        if len(words) >= 2 and words[0] == module and words[1].startswith("v"):
            return words[1]
    raise ClusterError(f"go.mod does not require {module}")


def pinned_version(name: str) -> str:
    """The version of a binary, as its go.mod pins it; empty for one that is not ours."""
    for module in MODULES:
        package = module.binaries.get(name)
        if package is not None:
            return _version_of_package((paths.TOOLS / module.name / "go.mod").read_text(), package)
    return ""


def _version_of_package(go_mod: str, package: str) -> str:
    # The module of a package is the longest of its prefixes that is required.
    while package:
        try:
            return required_version(go_mod, package)
        except ClusterError:
            package = package.rpartition("/")[0]
    return ""


def build_flags(module: Module, go_mod: str) -> list[str]:
    """The flags of `go build` for a module."""
    variables = [f"-X {variable}={required_version(go_mod, of)}" for variable, of in module.versions.items()]
    tags = [f"-tags={module.tags}"] if module.tags else []
    return ["-mod=readonly", "-buildvcs=false", *tags, "-ldflags", " ".join(["-s", "-w", *variables])]


def build_stamp(package: str, flags: Iterable[str], go_version: str, go_mod: bytes, go_sum: bytes) -> str:
    """A digest of all that decides a binary."""
    digest = hashlib.sha256()
    for part in (package.encode(), "\0".join(flags).encode(), go_version.encode(), go_mod, go_sum):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def build(names: Iterable[str]) -> None:
    """Build the named binaries into the cache, where they are not fresh. Raises ClusterError."""
    wanted = set(names)
    with exclusive("build"):
        go = gotool.find_go()
        for module in MODULES:
            _build_module(go, module, [name for name in module.binaries if name in wanted])


def require(names: Iterable[str]) -> None:
    """Raise ClusterError unless the named binaries are there."""
    missing = [name for name in names if not paths.binary(name).exists()]
    if missing:
        raise ClusterError(f"not built yet: {', '.join(missing)}; `make binaries` builds them into {paths.binaries()}")


def _build_module(go: Path, module: Module, names: list[str]) -> None:
    directory = paths.TOOLS / module.name
    go_mod, go_sum = (directory / "go.mod").read_bytes(), (directory / "go.sum").read_bytes()
    flags = build_flags(module, go_mod.decode())
    version = gotool.version_output(go)
    stamps = {name: build_stamp(module.binaries[name], flags, version, go_mod, go_sum) for name in names}
    stale = [name for name in names if not _is_fresh(name, stamps[name])]
    if not stale:
        return
    print(f"{module.name}: building {', '.join(stale)}", flush=True)
    started = time.monotonic()
    paths.binaries().mkdir(parents=True, exist_ok=True)
    # On the same file system, so that a rename puts a whole binary in place, also under a running one.
    with tempfile.TemporaryDirectory(dir=paths.binaries(), prefix=".build-") as scratch:
        _go_build(go, directory, flags, [module.binaries[name] for name in stale], Path(scratch), module.name)
        for name in stale:
            (Path(scratch) / go_name(module.binaries[name])).rename(paths.binary(name))
            _stamp(name).parent.mkdir(exist_ok=True)
            _stamp(name).write_text(stamps[name])
    print(f"{module.name}: built in {time.monotonic() - started:.0f} s", flush=True)


def go_name(package: str) -> str:
    """The file name that go gives a package's binary: its last part that is no major version."""
    parts = [part for part in package.split("/") if not (part[0] == "v" and part[1:].isdigit())]
    return parts[-1]


def stamp_of(name: str) -> str:
    """What decided a binary that was built, as a digest. Raises FileNotFoundError."""
    return _stamp(name).read_text()


def _stamp(name: str) -> Path:
    return paths.binaries() / ".stamps" / name


def _is_fresh(name: str, stamp: str) -> bool:
    try:
        return paths.binary(name).exists() and _stamp(name).read_text() == stamp
    except FileNotFoundError:
        return False


def _go_build(go: Path, directory: Path, flags: list[str], packages: list[str], out: Path, label: str) -> None:
    """Run one `go build -v`, which names each package that it compiles; a line of progress now and then."""
    # GOFLAGS is emptied: a developer's flags must not decide what is built. The toolchain is the one that was found.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    process = subprocess.Popen(
        [str(go), "build", "-v", *flags, "-o", f"{out}/", *packages],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    done = threading.Event()
    teller = threading.Thread(target=_tell_progress, args=(label, lines, done), daemon=True)
    teller.start()
    try:
        assert process.stdout is not None  # noqa: S101 - told to Popen above
        for line in process.stdout:
            lines.append(line.rstrip())
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        done.set()
        teller.join()
    if status != 0:
        # Not the names of packages, which others that are compiled side by side go on to print.
        told = [line for line in lines if " " in line] or lines
        tail = "\n".join("  " + line for line in told[-20:])
        raise ClusterError(f"building {label} failed. The last lines of go build:\n{tail}")


def _tell_progress(label: str, lines: list[str], done: threading.Event) -> None:
    started = time.monotonic()
    while not done.wait(_PROGRESS_EVERY):
        seconds = time.monotonic() - started
        last = lines[-1] if lines else "nothing compiled yet"
        print(f"{label}: {seconds:.0f} s, {len(lines)} packages compiled, last {last}", flush=True)
