"""Addresses of hosts and services: joining, splitting and judging them, IPv6 included."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class HostPort:
    """A host without brackets, and a port when one was given."""

    host: str
    port: int | None


def join_host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str) -> HostPort | None:
    """The host and port of `host`, `host:port`, `[v6]` or `[v6]:port`; None when it is none of these.

    A bare IPv6 address followed by a port is ambiguous and refused; without a port it is accepted.
    """
    bracketed = re.fullmatch(r"\[([0-9A-Fa-f:.]+)\](?::([0-9]{1,5}))?", text)
    if bracketed:
        host, port = bracketed.groups()
        return _host_port(host, port) if _is_ipv6(host) else None
    if _is_ipv6(text):
        return HostPort(text, None)
    host, separator, port = text.partition(":")
    if not _HOST.fullmatch(host) or (separator and not port.isdigit()):
        return None
    return _host_port(host, port or None)


def is_unroutable(host: str) -> bool:
    """Whether other pods cannot reach this host: loopback or the any-address."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _host_port(host: str, port: str | None) -> HostPort | None:
    if port is None:
        return HostPort(host, None)
    return HostPort(host, int(port)) if 0 < int(port) <= 65535 else None


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
