"""All checks of one engine's store, one after another; what needs a check that failed is left out."""

import os
import socket
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from mooncake_store_connector.addresses import HostPort, split_host_port
from mooncake_store_connector.client import CONFIG_ENV, ClientConfig, why_unreachable
from mooncake_store_connector.doctor.binding import judge_binding
from mooncake_store_connector.doctor.bounded import Deadline, program, run_in_thread, run_program
from mooncake_store_connector.doctor.checks import (
    check_addresses,
    check_extra,
    check_keys,
    check_memory,
    check_seed,
    fail,
    metadata_hosts,
)
from mooncake_store_connector.doctor.report import Finding, Level
from mooncake_store_connector.doctor.roundtrip import make_round_trip
from mooncake_store_connector.prepare import explain_connect_error, read_object
from mooncake_store_connector.probe import why_silent
from mooncake_store_connector.problems import ConfigError, Problem

_NAME_SECONDS: Final = 5.0
_JOIN_SECONDS: Final = 10.0


def examine(path: Path | None, extra: Mapping[str, Any] | None, deadline: Deadline) -> Iterator[Finding]:
    """What is found, as soon as it is. `path` is the config file's, `extra` what `--kv-transfer-config` adds to it."""
    if extra is not None:
        yield from check_extra(extra)
    yield check_seed(os.environ.get("PYTHONHASHSEED"))
    values = yield from _examine_file(path)
    binding = judge_binding(run_program(program("binding"), deadline.left()))
    yield binding
    if values is not None:
        yield from _examine_store(values, deadline, has_binding=binding.level is not Level.FAIL)


def find_config(path: Path | None) -> Path:
    """The config file: the one that was named, or the environment's. Raises ConfigError."""
    if path is None and os.environ.get(CONFIG_ENV):
        path = Path(os.environ[CONFIG_ENV])
    if path is None:
        remedy = "set it to the path of mooncake_config.json, or name the file with --config"
        raise ConfigError([Problem(CONFIG_ENV, "not set", remedy)])
    return path


def _examine_file(path: Path | None) -> Generator[Finding, None, Mapping[str, Any] | None]:
    """The file and what is in it; returns its content if that can be used."""
    try:
        found = find_config(path)
        raw = read_object(found.read_text())
    except ConfigError as error:
        yield from map(fail, error.problems)
        return None
    except (OSError, UnicodeDecodeError) as error:
        yield Finding(Level.FAIL, "config", f"cannot be read ({error})", "name a readable file with --config")
        return None
    yield Finding(Level.OK, "config", f"{found} is one JSON object")
    findings, values = check_keys(raw, found.name)
    yield from findings
    return values


def _examine_store(values: Mapping[str, Any], deadline: Deadline, *, has_binding: bool) -> Iterator[Finding]:
    yield check_memory(values)
    resolved = resolve(str(values["master_server_address"]), deadline)
    yield resolved
    if resolved.level is Level.FAIL:
        return
    config = run_in_thread(lambda: ClientConfig.of(values), deadline.left(), None)
    if config is None:
        yield Finding(Level.FAIL, "own address", "not found in time", "write local_hostname, or give more --timeout")
        return
    yield from check_addresses(config)
    yield from _examine_services(config, deadline, has_binding=has_binding)


def resolve(master: str, deadline: Deadline) -> Finding:
    """Whether the master's name leads to an address."""
    target = split_host_port(master) or HostPort(master, None)
    late: list[str] | OSError = OSError(f"the name was not resolved within {_NAME_SECONDS:g} s")
    found = run_in_thread(lambda: _addresses(target), deadline.left(_NAME_SECONDS), late)
    if isinstance(found, OSError):
        return Finding(Level.FAIL, "master's name", explain_connect_error(master, found), "see master_server_address")
    return Finding(Level.OK, "master's name", f"{target.host} is {', '.join(found)}")


def _addresses(target: HostPort) -> list[str] | OSError:
    try:
        entries = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return error if isinstance(error, OSError) else OSError(str(error))
    return sorted({str(entry[4][0]) for entry in entries})


def _examine_services(config: ClientConfig, deadline: Deadline, *, has_binding: bool) -> Iterator[Finding]:
    late = "no answer in time"
    for host in metadata_hosts(config.metadata_server):
        if reason := run_in_thread(partial(why_unreachable, host), deadline.left(), late):
            yield Finding(Level.FAIL, "metadata", reason, "start the service, or see metadata_server")
    if reason := run_in_thread(partial(why_unreachable, config.master), deadline.left(), late):
        yield Finding(Level.FAIL, "master", reason, "start it, or see its Service and NetworkPolicies")
        return
    if not has_binding:
        yield Finding(Level.OK, "master", f"{config.master} accepts connections; more cannot be tried without Mooncake")
        return
    # Half of the time at most: a round trip is still to come.
    if reason := why_silent(config, round(min(_JOIN_SECONDS, deadline.left() / 2), 1)):
        yield Finding(Level.FAIL, "master", reason, "it may hang: see its log, and start it again")
        return
    yield Finding(Level.OK, "master", f"{config.master} let a client join")
    yield make_round_trip(config, deadline)
