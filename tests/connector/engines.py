"""Real vLLM engines on the CPU, with our connector or with none."""

import json
import re
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mooncake_store_connector.prepare import pod_config

from connector.environment import connector_path, model, program
from connector.processes import Process, answers, free_port, wait_until

SERVED = "smollm"
PREFIX = "test"
# vLLM's default on CPUs.
BLOCK = 128


@dataclass
class Engine:
    """A running `vllm serve`."""

    port: int
    process: Process

    def post(self, path: str, body: Mapping[str, Any], seconds: float = 300) -> dict[str, Any]:
        """A JSON answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=seconds) as response:  # noqa: S310 - loopback
            text = response.read()
        answer: dict[str, Any] = json.loads(text) if text else {}
        return answer

    def complete(self, prompt: list[int], max_tokens: int, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A greedy completion of token ids, with the token ids of the answer."""
        body: dict[str, Any] = {
            "model": SERVED,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        if params is not None:
            body["kv_transfer_params"] = params
        return self.post("/v1/completions", body)

    def counter(self, name: str) -> float:
        """The sum of a Prometheus counter's series."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as response:
            text = response.read().decode()
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.M))


def token_ids(answer: Mapping[str, Any]) -> list[int]:
    """The token ids of the answer's only choice."""
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def transfer_config(**extra: object) -> str:
    """The `--kv-transfer-config` that the operator writes for both roles."""
    return json.dumps(
        {
            "kv_connector": "MooncakeStoreConnector",
            "kv_connector_module_path": "mooncake_store_connector.v1",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"cache_prefix": PREFIX, **extra},
        }
    )


def write_store_config(folder: Path, master_port: int, **changes: object) -> Path:
    """One engine's config file, as its init container writes it. Loopback stands in for the pod's address."""
    template = {
        "master_server_address": f"master.invalid:{master_port}",
        "global_segment_size": "512Mi",
        "local_buffer_size": "512Mi",
        "protocol": "tcp",
        "metadata_server": "P2PHANDSHAKE",
    }
    values = json.loads(pod_config(json.dumps(template), "127.0.0.1"))
    # Loopback is refused as a master's address, rightly: other pods could not reach it. Here there is one machine.
    values |= {"master_server_address": f"127.0.0.1:{master_port}", **changes}
    path = folder / "mooncake_config.json"
    path.write_text(json.dumps(values))
    return path


@contextmanager
def engine(
    folder: Path,
    *,
    config: str | None = None,
    store: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> Iterator[Engine]:
    """A float32 engine with `flags` of its own; yields when it is being started, see `wait_ready`."""
    port = free_port()
    # vLLM leaves its sockets there.
    (folder / "tmp").mkdir(exist_ok=True)
    settings = {
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(folder / "tmp"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "GOMP_SPINCOUNT": "5000",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_SERVER_DEV_MODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": connector_path(),
        "MC_FORCE_TCP": "1",
        "MC_RPC_TIMEOUT_MS": "2000",
        **({"MOONCAKE_CONFIG_PATH": str(store)} if store else {}),
        **(env or {}),
    }
    command = [program("vllm"), "serve", str(model()), "--served-model-name", SERVED, "--port", str(port)]
    command += ["--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "4096", "--enforce-eager", *flags]
    if config:
        command += ["--kv-transfer-config", config]
    process = Process(command, folder / "engine.log", settings)
    try:
        yield Engine(port, process)
    finally:
        process.stop()


def wait_ready(started: Engine) -> None:
    """Until it serves."""
    url = f"http://127.0.0.1:{started.port}/health"
    wait_until("an engine", 600, lambda: answers(url), started.process)
