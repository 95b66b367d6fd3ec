"""The image registry: Debian's docker-registry on 127.0.0.1:5000, its blobs in the cache, its configuration our own."""

import shutil
import urllib.error
import urllib.request

from cluster import paths, ports
from cluster.errors import ClusterError
from cluster.processes import Processes, Program

ADDRESS = "127.0.0.1:5000"
NAME = "registry"
_PORT = 5000


def build_config(storage: str) -> str:
    """The registry's configuration file, for blobs under `storage`."""
    return f"""\
version: 0.1
log:
  level: warn
  accesslog: {{disabled: true}}
storage:
  cache: {{blobdescriptor: inmemory}}
  filesystem: {{rootdirectory: {storage}}}
  delete: {{enabled: true}}
http:
  addr: {ADDRESS}
"""


def processes() -> Processes:
    """The registry's own record: it may run without a cluster."""
    return Processes(paths.REGISTRY_RUN)


def is_healthy() -> bool:
    """Whether our registry runs and answers."""
    return processes().alive(NAME) and _answers()


def up() -> bool:
    """Start the registry unless it is healthy. Returns whether it had to be started. Raises ClusterError."""
    if is_healthy():
        return False
    program = shutil.which("docker-registry")
    if program is None:
        raise ClusterError("docker-registry is not installed; `hack/setup.sh` installs it")
    running = processes()
    running.stop(NAME)
    if (holder := ports.holder(_PORT)) is not None:
        raise ClusterError(f"port {_PORT} is held by {holder}; the registry needs 127.0.0.1:{_PORT}, so stop it first")
    storage = paths.cache() / "registry"
    storage.mkdir(parents=True, exist_ok=True)
    running.directory.mkdir(parents=True, exist_ok=True)
    config = running.directory / "config.yml"
    config.write_text(build_config(str(storage)))
    running.start(Program(NAME, [program, "serve", str(config)]))
    running.wait_ready(NAME, _answers, timeout=15)
    return True


def down() -> bool:
    """Stop the registry and remove all but its blobs. Returns whether there was one."""
    if not paths.REGISTRY_RUN.exists():
        return False
    processes().stop(NAME)
    shutil.rmtree(paths.REGISTRY_RUN)
    return True


def _answers() -> bool:
    try:
        with urllib.request.urlopen(f"http://{ADDRESS}/v2/", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
