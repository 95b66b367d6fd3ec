"""Field case C50: clients that start on one address at the same moment each get a port of their own."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from connector.processes import master
from connector.store_programs import P2P, client

CLIENTS = 8
SEGMENT = 16 << 20
# Eight processes start on whatever cores there are: how long the master takes is not the question here.
PATIENT = {"MC_RPC_TIMEOUT_MS": "30000"}


def test_each_has_an_address_of_its_own_and_reads_what_was_written(tmp_path: Path, full_counts: bool) -> None:
    with master(tmp_path / "master.log") as (port, _):
        for turn in range(20 if full_counts else 1):
            with ExitStack() as stack, ThreadPoolExecutor(CLIENTS) as pool:
                clients = [
                    stack.enter_context(client(tmp_path / f"{number}.log", PATIENT)) for number in range(CLIENTS)
                ]
                # Answered when Mooncake is loaded: what follows begins everywhere at the same moment.
                list(pool.map(lambda one: one("health_check"), clients))
                joined = list(pool.map(lambda one: one.join(P2P, port, segment=SEGMENT), clients))
                assert joined == [0] * CLIENTS
                addresses = [one("get_hostname") for one in clients]
                assert len(set(addresses)) == CLIENTS, addresses
                values = {f"{turn}-{number}": f"{turn}-{number} " * 5000 for number in range(4 * CLIENTS)}
                for number, (key, value) in enumerate(values.items()):
                    assert clients[number % CLIENTS]("put", key, value) == 0
                for reader in clients:
                    assert {key: reader("get", key) for key in values} == values
