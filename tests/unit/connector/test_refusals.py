"""What is said of a store that does not take a client."""

import pytest
from mooncake_store_connector.client import ClientConfig, explain_refusal


def config(protocol: str) -> ClientConfig:
    return ClientConfig.of(
        {
            "master_server_address": "mc:50051",
            "metadata_server": "P2PHANDSHAKE",
            "local_hostname": "10.0.0.5",
            "protocol": protocol,
            "device_name": "",
            "global_segment_size": 80 << 30,
            "local_buffer_size": 1 << 30,
        }
    )


@pytest.mark.parametrize("protocol", ["rdma", "efa"])
def test_memory_that_cannot_be_registered_is_told_with_its_remedy(protocol: str) -> None:
    """Field case C106: Mooncake itself tells a code alone, and its log speaks of memory that is free."""
    told = explain_refusal(config(protocol), -1)
    for word in ("mc:50051", "code -1", "Cannot allocate memory", "max_mr_size", "memlock", str(80 << 30)):
        assert word in told


def test_over_tcp_nothing_is_registered() -> None:
    assert explain_refusal(config("tcp"), -1) == "the store at mc:50051 did not take us: code -1"
