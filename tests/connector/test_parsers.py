"""The one config file, read by the parsers of vLLM and Mooncake themselves."""

import json
import subprocess
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


@pytest.mark.parametrize("name", _TEMPLATES)
def test_all_readers_agree(name: str, tmp_path: Path) -> None:
    """Field cases C01, C02, C04, C07, C13."""
    text = pod_config(json.dumps(_TEMPLATES[name]), "10.0.0.5")
    path = tmp_path / "mooncake_config.json"
    path.write_text(text)
    ours = json.loads(text)
    script = Path(__file__).with_name("read_config.py")
    output = subprocess.run([program("python"), script, path], capture_output=True, text=True, check=True, timeout=240)
    line = next(line for line in output.stdout.splitlines() if line.startswith("RESULT "))
    read: dict[str, dict[str, Any]] = json.loads(line.removeprefix("RESULT "))
    for config in read.values():
        shared = config.keys() & ours.keys()
        assert {key: config[key] for key in shared} == {key: ours[key] for key in shared}
    assert {"mode", "global_segment_size", "protocol", "device_name"} <= read["vllm"].keys()
    assert read["mooncake"]["local_hostname"] == "10.0.0.5"
    assert read["vllm"]["tenant_id"] == read["mooncake"]["tenant_id"]
