"""The one config file, read by the parsers of vLLM and Mooncake themselves."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mooncake_store_connector.prepare import pod_config

from connector.environment import program

_TEMPLATES: dict[str, dict[str, Any]] = {
    "smallest": {"master_server_address": "mc"},
    "quantities": {
        "master_server_address": "mc:50051",
        "global_segment_size": "80GB",
        "local_buffer_size": "1500Mi",
        "protocol": "RDMA",
        "device_name": ["mlx5_0", "mlx5_1"],
        "metadata_server": "mc-meta",
    },
    "standalone": {
        "mode": "standalone-store",
        "global_segment_size": 0,
        "master_server_address": "[fd00::9]:50051",
        "enable_offload": "true",
        "tenant_id": "blue",
        "metadata_server": "redis://redis-svc",
    },
    "vendor": {
        "master_server_address": "mc-svc:30089",
        "protocol": "ascend",
        "use_ascend_direct": "true",
        "global_segment_size": 42949672960,
        "local_hostname": "$POD_IP",
        "tansfer_timeout": 60,
    },
}


@dataclass(frozen=True)
class Reading:
    """One file, and what each real parser makes of it."""

    ours: dict[str, Any]
    vllm: dict[str, Any]
    mooncake: dict[str, Any]


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reading]:
    """All files in one run: loading vLLM takes seconds."""
    folder = tmp_path_factory.mktemp("configs")
    texts = {name: pod_config(json.dumps(template), "10.0.0.5") for name, template in _TEMPLATES.items()}
    paths = [folder / f"{name}.json" for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    script = Path(__file__).with_name("read_config.py")
    output = subprocess.run(
        [program("python"), script, *paths], capture_output=True, text=True, check=True, timeout=600
    ).stdout
    line = next(line for line in output.splitlines() if line.startswith("RESULT "))
    read = json.loads(line.removeprefix("RESULT "))
    return {name: Reading(json.loads(text), **of) for (name, text), of in zip(texts.items(), read, strict=True)}


@pytest.mark.parametrize("name", _TEMPLATES)
def test_all_readers_agree(name: str, readings: dict[str, Reading]) -> None:
    """Field cases C01, C02, C04, C07, C13."""
    reading = readings[name]
    for config in (reading.vllm, reading.mooncake):
        shared = config.keys() & reading.ours.keys()
        assert {key: config[key] for key in shared} == {key: reading.ours[key] for key in shared}
    assert {"mode", "global_segment_size", "protocol", "device_name"} <= reading.vllm.keys()
    assert reading.mooncake["local_hostname"] == "10.0.0.5"
    assert reading.vllm["tenant_id"] == reading.mooncake["tenant_id"]
