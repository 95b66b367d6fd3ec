"""Field case C44: in an IPv6 cluster clients and probes reach the front at the pod's only address."""

import sys

import pytest

from router.client import ask, new_client, prompt_of
from router.programs import Program, eventually, free_port, has_ipv6, running
from router.stack import Router, Stack


@pytest.mark.skipif(not has_ipv6(), reason="this kernel has no IPv6")
async def test_the_front_serves_over_ipv6(small: Stack) -> None:
    small.add_engine("prefill")
    small.add_engine("decode")
    known = small.add_router()
    listen, admin = free_port(), free_port()
    flags = [f"--listen-port={listen}", f"--admin-port={admin}", "--listen-host=::", "--admin-host=::"]
    argv = [sys.executable, "-m", "disagg_router", f"--discovery-url={known.discovery_url}", "--model-name=smol"]
    front = Program([*argv, *flags], small.directory / "front-ipv6.log")
    router = Router(known.discovery, known.discovery_url, front, f"http://[::1]:{listen}", f"http://[::1]:{admin}")
    with running(front):
        eventually(router.ready, "it is ready")
        small.settle(router)
        async with new_client() as client:
            assert await ask(client, router.url, prompt_of(10, streamed=True, number=1)) == ""
        assert router.metric("disagg_router_prefill_legs_total", outcome="ok") == 1
