"""What can be said of the configuration without a store: keys, values, addresses, extra config, hash seed. Pure."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any, Final

from mooncake_store_connector.addresses import is_unroutable, split_host_port
from mooncake_store_connector.client import ClientConfig
from mooncake_store_connector.config import KNOWN_KEYS, P2P, accept_any_host, normalise_config
from mooncake_store_connector.doctor.report import Finding, Level
from mooncake_store_connector.hashing import find_hash_problem
from mooncake_store_connector.problems import ConfigError, Problem
from mooncake_store_connector.v1.settings import KNOWN, own_options, read_settings

_SEED_CHECK: Final = "PYTHONHASHSEED"


def fail(problem: Problem) -> Finding:
    """A problem as a finding."""
    return Finding(Level.FAIL, problem.path, problem.found, problem.remedy)


def check_keys(raw: Mapping[str, object], name: str) -> tuple[list[Finding], dict[str, object] | None]:
    """What is to be said of a config file's keys and values, and its content if it can be used."""
    # The template must not have it, but the file of one machine may.
    own = raw.get("local_hostname")
    shared = {key: value for key, value in raw.items() if key != "local_hostname"}
    try:
        config = normalise_config(shared, path=name, is_refused=accept_any_host)
    except ConfigError as error:
        return [*_unknown_keys(raw, name, error.problems), *map(fail, error.problems)], None
    findings = [_warning(text) for text in config.warnings]
    if own is not None and not isinstance(own, str):
        found = f"found a {type(own).__name__}"
        return [*findings, fail(Problem(f"{name}.local_hostname", found, "write this machine's address"))], None
    unknown = [key for key in raw if key not in KNOWN_KEYS]
    if not unknown:
        findings.append(Finding(Level.OK, name, f"{len(raw)} keys, all known, with values that can be used"))
    return findings, {**config.values, "local_hostname": own}


def _unknown_keys(raw: Mapping[str, object], name: str, problems: Collection[Problem]) -> list[Finding]:
    """Warnings of keys that nobody reads: the config's own are not told where it has problems."""
    told = {problem.path for problem in problems}
    findings = []
    for key in raw:
        if key not in KNOWN_KEYS and f"{name}.{key}" not in told:
            near = difflib.get_close_matches(key, KNOWN_KEYS, n=1, cutoff=0.6)
            remedy = f"the nearest known key is {near[0]}" if near else "remove it"
            findings.append(Finding(Level.WARNING, f"{name}.{key}", "no reader knows this key", remedy))
    return findings


def _warning(text: str) -> Finding:
    """A sentence of the config's: a path, a colon, and what is the matter, often with what would be right."""
    where, _, rest = text.partition(": ")
    found, _, remedy = rest.partition("; ")
    return Finding(Level.WARNING, where, found, remedy)


def check_memory(values: Mapping[str, Any]) -> Finding:
    """How bytes travel, and what memory they are given."""
    segment, buffer = int(values["global_segment_size"]), int(values["local_buffer_size"])
    lends = f"each rank lends {_size(segment)}" if segment else "engines lend no memory, others do"
    found = f"protocol {values['protocol']}; {lends}; the transfer buffer has {_size(buffer)} for each rank"
    return Finding(Level.OK, "memory", found)


def check_addresses(config: ClientConfig) -> list[Finding]:
    """Whether others can reach what the file names."""
    hosts = {
        "master": config.master,
        **{f"metadata {host}": host for host in metadata_hosts(config.metadata_server)},
        "own address": config.local_hostname,
    }
    loopback = {name: _host(text) for name, text in hosts.items() if is_unroutable(_host(text))}
    findings = [
        Finding(
            Level.WARNING,
            "addresses",
            f"{name} is {host}, which other machines cannot reach",
            "right for one machine alone; else write an address that they can reach",
        )
        for name, host in loopback.items()
    ]
    if not loopback:
        told = ", ".join(f"{name} {text}" for name, text in hosts.items() if not name.startswith("metadata"))
        findings.append(Finding(Level.OK, "addresses", f"{told}, metadata {config.metadata_server}"))
    return findings


def metadata_hosts(server: str) -> list[str]:
    """`host:port` of each metadata service; none with P2PHANDSHAKE, which needs no service."""
    if server == P2P:
        return []
    return server.partition("://")[2].partition("/")[0].split(",")


def check_extra(extra: Mapping[str, Any]) -> list[Finding]:
    """What the engine would say of `kv_connector_extra_config`."""
    where = "kv_connector_extra_config"
    try:
        settings = read_settings(own_options(extra))
    except ConfigError as error:
        return [fail(problem) for problem in error.problems]
    findings = [Finding(Level.WARNING, where, note, "remove it") for note in settings.notes]
    if not settings.cache_prefix:
        found = "cache_prefix is not set: every engine of the same model that uses this store shares its KV"
        findings.append(Finding(Level.WARNING, where, found, "set it to keep deployments apart"))
    told = ", ".join(f"{key} {getattr(settings, key)!r}" for key in KNOWN)
    return [*findings, Finding(Level.OK, where, told)]


def check_seed(hash_seed: str | None) -> Finding:
    """Whether other processes compute the same block hashes, as far as this environment tells."""
    # The engine's algorithm is not known here. sha256 is the default; others ask for more.
    if problem := find_hash_problem("sha256", hash_seed):
        return fail(problem)
    if problem := find_hash_problem("xxhash", hash_seed):
        return Finding(Level.WARNING, problem.path, "not set: fine with sha256 alone", problem.remedy)
    return Finding(Level.OK, _SEED_CHECK, f"{hash_seed}; it has to be the same on all engines")


def _host(text: str) -> str:
    address = split_host_port(text)
    return address.host if address is not None else text


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
