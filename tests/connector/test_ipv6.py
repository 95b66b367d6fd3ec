"""Field case C44: KV over IPv6, with the flags, the variable and the addresses that an IPv6 cluster's pods get."""

import json
import random
from pathlib import Path

import pytest
from disagg_operator.build.inputs import ClusterFacts
from mooncake_store_connector.prepare import wait_for_store
from router.programs import has_ipv6
from unit.build.samples import build, container, engine, env_of, make

from connector.processes import master
from connector.stand_in import PAYLOAD, stand_in

IN_AN_IPV6_CLUSTER = build(make(), ClusterFacts(ip_family="IPv6"))


@pytest.mark.skipif(not has_ipv6(), reason="this kernel has no IPv6")
def test_engines_share_over_ipv6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = container(IN_AN_IPV6_CLUSTER, "master", "master")["args"]
    address = next(flag for flag in flags if flag.startswith("--rpc_address="))
    monkeypatch.setenv("MC_USE_IPV6", env_of(engine(IN_AN_IPV6_CLUSTER))["MC_USE_IPV6"])
    draw = random.Random(0)
    hashes, payloads = zip(*[(draw.randbytes(32), draw.randbytes(PAYLOAD)) for _ in range(12)], strict=True)
    with master(tmp_path / "master.log", flags=[address]) as (port, _):
        where = f"[::1]:{port}"
        assert wait_for_store(where, None, 0).is_ready
        # As `prepare` writes it, which refuses loopback: the pod's address is without brackets.
        values = {"master_server_address": where, "local_hostname": "::1", "metadata_server": "P2PHANDSHAKE"}
        sizes = {"global_segment_size": 64 << 20, "local_buffer_size": 16 << 20}
        config = tmp_path / "mooncake_config.json"
        config.write_text(json.dumps({**values, **sizes, "protocol": "tcp"}))
        with stand_in(config, tmp_path / "a.log") as one, stand_in(config, tmp_path / "b.log") as two:
            one.wait_usable()
            two.wait_usable()
            one.save(hashes, payloads)
            assert two.load(hashes) == {(0, index): [payloads[index]] for index in range(12)}
