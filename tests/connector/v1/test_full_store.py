"""A store without room: prefill promises nothing that may never come, so decode waits for nothing."""

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from connector.processes import master
from connector.store_programs import P2P, Client, client
from connector.test_agent import config_file
from connector.test_client_guards import fill
from connector.v0.programs import Worker
from connector.v1.chain import continue_prompt
from connector.v1.programs import ASK, SCRIPT, Engine

# What was looked at cannot be evicted.
LEASES = "-default_kv_lease_ttl=600000"
TOKENS = 160


@dataclass
class Site:
    """Two engines and another client on one small store."""

    prefill: Engine
    decode: Engine
    other: Client


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    with (
        master(folder / "master.log", flags=(LEASES,)) as (port, _),
        client(folder / "other.log", {"MC_RPC_TIMEOUT_MS": "20000"}) as other,
    ):
        config = config_file(folder, port, local_buffer_size="1Mi", global_segment_size="16Mi")
        bench = Worker("full", folder / "engines.log", {"MOONCAKE_CONFIG_PATH": str(config)}, script=SCRIPT)
        try:
            engines = Engine(bench, "prefill"), Engine(bench, "decode")
            for engine in engines:
                engine.open(scheduler="Scheduler")
            assert other.join(P2P, port) == 0
            yield Site(*engines, other)
        finally:
            bench.stop()


def test_nothing_is_promised_while_the_store_has_no_room(tmp_path: Path) -> None:
    draw = random.Random(1)
    prompts = ([draw.randrange(50_000) for _ in range(TOKENS)] for _ in itertools.count())
    with site(tmp_path) as on:
        assert on.prefill.complete(next(prompts), 1, ASK).params is not None
        fill(on.other)
        on.prefill.complete(next(prompts), 1, ASK)
        on.prefill.step_until("a drop", lambda: on.prefill.count("drops_full") > 0)
        prompt = next(prompts)
        assert on.prefill.complete(prompt, 1, ASK).params is None
        assert on.prefill.count("promises_withheld") == 1
        answer = on.decode.complete(prompt, 3, None)
        assert answer.tokens == continue_prompt(prompt, 3)
        assert on.decode.count("promises_broken") == 0
        # With room again it is seen by the next save, and promised from then on.
        assert on.other("remove_all", True) > 0
        on.prefill.step_until(
            "a promise", lambda: on.prefill.complete(next(prompts), 1, ASK).params is not None, seconds=30
        )
