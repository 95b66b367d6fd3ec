"""The command line, and nothing but the command line: what is not a flag is not a setting."""

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path

_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "k": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Settings:
    """All settings. Times are seconds, sizes bytes."""

    discovery_url: str
    direct_decode_url: str = ""
    model_names: tuple[str, ...] = ()
    listen_host: str = "0.0.0.0"  # noqa: S104  # a pod's only address is not known beforehand
    listen_port: int = 8000
    admin_host: str = "0.0.0.0"  # noqa: S104
    admin_port: int = 9090
    pods_url: str = ""
    pair_label: str = "inference.disagg.io/kv-revision"
    service_account_dir: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    api_key_file: Path | None = None
    api_key_reload_seconds: float = 5.0
    max_body_size: int = 32 << 20
    max_buffered_bytes: int = 512 << 20
    max_in_flight: int = 4096
    body_timeout: float = 60.0
    prefill_timeout: float = 60.0
    prefill_timeout_per_mib: float = 60.0
    prefill_params: str = "{}"
    connect_timeout: float = 2.0
    idle_timeout: float = 1800.0
    decode_wait: float = 5.0
    retry_after: int = 5
    discovery_interval: float = 0.25
    check_interval: float = 1.0
    check_idle_interval: float = 5.0
    check_timeout: float = 3.0
    check_failures: int = 3
    decode_check_failures: int = 5
    breaker_failures: int = 3
    breaker_cooldown: float = 1.0
    breaker_max_cooldown: float = 60.0
    lame_duck_seconds: float = 3.0
    drain_seconds: float = 600.0
    log_level: str = "info"


def parse_size(text: str) -> int:
    """A size in bytes: a whole number, alone or with Ki, Mi, Gi, k, M or G. Raises ArgumentTypeError otherwise."""
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi|k|M|G)?", text)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes, or 512Ki, 32Mi, 1Gi")
    return int(match[1]) * _UNITS[match[2] or ""]


def parse_seconds(text: str) -> float:
    """A time in seconds, zero or more. Raises ArgumentTypeError otherwise."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 10**7:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write seconds, such as 0.5 or 30")
    return seconds


def parse_url(text: str) -> str:
    """A plain http base URL without a path. Raises ArgumentTypeError otherwise."""
    if not re.fullmatch(r"http://[A-Za-z0-9.\-\[\]:]+/?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no base URL; write http://host:port")
    return text.rstrip("/")


def parse_pods_url(text: str) -> str:
    """The https URL of a list of pods, query included. Raises ArgumentTypeError otherwise."""
    if not re.fullmatch(r"https://[^/\s]+/api/v1/namespaces/[^/\s]+/pods(\?\S*)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} lists no pods; write https://host/api/v1/namespaces/name/pods?...")
    return text


def parse_object(text: str) -> str:
    """A JSON object, kept as text. Raises ArgumentTypeError otherwise."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return text


def build_parser() -> argparse.ArgumentParser:
    """The flags with their help."""
    parser = argparse.ArgumentParser(
        prog="disagg-router", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--discovery-url", type=parse_url, required=True, help="vllm-router in P/D mode, which lists the engines")
    add("--direct-decode-url", type=parse_url, help="decode's Service, for when no engine is listed")
    add("--pods-url", type=parse_pods_url, help="list of the engines' pods; without it all are paired")
    add("--pair-label", default=Settings.pair_label, help="label of a pod: prefill and decode are paired by its value")
    account = Settings.service_account_dir
    add("--service-account-dir", type=Path, default=account, help="token and ca.crt for the list of pods")
    add("--model-name", action="append", default=[], help="a model that /v1/models lists while decode is away")
    add("--listen-host", default=Settings.listen_host, help="address for clients")
    add("--listen-port", type=int, default=Settings.listen_port, help="port for clients")
    add("--admin-host", default=Settings.admin_host, help="address for health and metrics")
    add("--admin-port", type=int, default=Settings.admin_port, help="port for health and metrics")
    add("--api-key-file", type=Path, help="file or directory of API keys, one on a line; without it no key is asked")
    add("--log-level", choices=["debug", "info", "warning", "error"], default=Settings.log_level, help="least level")
    _add_limits(parser)
    _add_times(parser)
    return parser


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--max-body-size", type=parse_size, default=Settings.max_body_size, help="largest request; retries hold for all"
    )
    add("--max-buffered-bytes", type=parse_size, default=Settings.max_buffered_bytes, help="bodies held at once")
    add("--max-in-flight", type=int, default=Settings.max_in_flight, help="requests at once")
    add("--check-failures", type=int, default=Settings.check_failures, help="health checks missed: no new requests")
    add(
        "--decode-check-failures",
        type=int,
        default=Settings.decode_check_failures,
        help="the same: give up running ones",
    )
    add("--breaker-failures", type=int, default=Settings.breaker_failures, help="failures in a row before it opens")
    add("--retry-after", type=int, default=Settings.retry_after, help="seconds that a 503 tells clients to wait")
    add("--prefill-params", type=parse_object, default="{}", help="kv_transfer_params that prefill is sent, as JSON")


def _add_times(parser: argparse.ArgumentParser) -> None:
    helps = {
        "api_key_reload_seconds": "between two reads of the key file",
        "body_timeout": "for a client to send its body",
        "prefill_timeout": "for the prefill leg, before decode goes on alone",
        "prefill_timeout_per_mib": "more of that for each MiB of body",
        "connect_timeout": "to connect to an engine",
        "idle_timeout": "without a byte moving in an answer",
        "decode_wait": "to wait for a decode engine to appear before 503",
        "discovery_interval": "between two looks at the list of engines",
        "check_interval": "between health checks of a busy engine",
        "check_idle_interval": "between health checks of an idle engine",
        "check_timeout": "for an answer to a health check",
        "breaker_cooldown": "before an engine that failed gets a trial",
        "breaker_max_cooldown": "the same at most, after failed trials",
        "lame_duck_seconds": "after SIGTERM in which new requests are still taken",
        "drain_seconds": "after that for requests in flight",
    }
    for name, text in helps.items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=parse_seconds, default=getattr(Settings, name), help=f"seconds {text}")


def parse_settings(argv: list[str] | None = None) -> Settings:
    """The settings of a command line. Bad flags end the process with a message, as argparse does."""
    values = vars(build_parser().parse_args(argv))
    values["direct_decode_url"] = values["direct_decode_url"] or ""
    values["pods_url"] = values["pods_url"] or ""
    values["model_names"] = tuple(values.pop("model_name"))
    return Settings(**values)
