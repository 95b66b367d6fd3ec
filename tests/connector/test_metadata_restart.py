"""What a restart of the metadata service costs: the measurement behind docs/adr/0004-metadata-default.md."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.processes import free_port, master
from connector.store_programs import P2P, Client, client, metadata_service

VALUE = "x" * 100_000
KEYS = [f"key-{index}" for index in range(8)]


@pytest.fixture
def master_port(tmp_path: Path) -> Iterator[int]:
    with master(tmp_path / "master.log") as (port, _):
        yield port


def _share(old: Client, other: Client) -> None:
    """Store from one client, read from the other."""
    for key in KEYS:
        assert old("put", key, VALUE) == 0
    assert _count_readable(other) == len(KEYS)


def _count_readable(reader: Client) -> int:
    return sum(reader("get", key) == VALUE for key in KEYS)


def test_http_metadata_forgets_its_clients(tmp_path: Path, master_port: int) -> None:
    """If this fails, Mooncake's clients register again, and the default may become HTTP."""
    port = free_port()
    address = f"http://127.0.0.1:{port}/metadata"
    with client(tmp_path / "a.log") as one, client(tmp_path / "b.log") as two, client(tmp_path / "c.log") as late:
        with metadata_service(tmp_path / "metadata.log", port):
            assert one.join(address, master_port) == 0
            assert two.join(address, master_port) == 0
            _share(one, two)
        assert _count_readable(two) == len(KEYS), "clients that know each other need no metadata"
        with metadata_service(tmp_path / "metadata.log", port):
            assert _count_readable(two) == len(KEYS)
            assert late.join(address, master_port) == 0
            assert _count_readable(late) == 0, "a client that joins later finds nobody who joined before"


def test_p2p_handshake_has_nothing_to_forget(tmp_path: Path, master_port: int) -> None:
    with client(tmp_path / "a.log") as one, client(tmp_path / "b.log") as two, client(tmp_path / "c.log") as late:
        assert one.join(P2P, master_port) == 0
        assert two.join(P2P, master_port) == 0
        _share(one, two)
        assert late.join(P2P, master_port) == 0
        assert _count_readable(late) == len(KEYS)
        assert late("put", "from-late", VALUE) == 0
        assert one("get", "from-late") == VALUE


def test_a_segment_is_mounted_from_16_mib_on(tmp_path: Path, master_port: int) -> None:
    """Field case C08: what `sizes.align_segment` rounds to is what the allocator takes."""
    with client(tmp_path / "a.log") as small, client(tmp_path / "b.log") as enough:
        assert small.join(P2P, master_port, segment=4 << 20) < 0
        assert enough.join(P2P, master_port, segment=16 << 20) == 0
        assert enough("put", "key", VALUE) == 0
