"""Settings of the operator: flags of its command line, one for each thing an installer may choose."""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from disagg_operator.build.inputs import Images, Pins


@dataclass(frozen=True)
class Settings:
    """How this operator runs."""

    pins: Pins
    watch_namespaces: tuple[str, ...]
    cluster_domain: str
    namespace: str
    identity: str
    leader_elect: bool
    lease_name: str
    resync_seconds: float
    workers: int
    metrics_port: int
    health_port: int
    log_level: str
    log_format: str


N = TypeVar("N", int, float)


def _positive(kind: Callable[[str], N]) -> Callable[[str], N]:
    """A number above zero, for argparse."""

    def read(text: str) -> N:
        try:
            number = kind(text)
        except ValueError:
            number = kind("0")
        if not number > 0:
            raise argparse.ArgumentTypeError(f"found {text!r}; write a number above 0")
        return number

    return read


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="disagg-operator", description="Operator for DisaggregatedInference resources."
    )
    images = parser.add_argument_group("images used where a resource names none")
    images.add_argument("--engine-image-cuda", default="", metavar="REF")
    images.add_argument("--engine-image-cpu", default="", metavar="REF")
    images.add_argument("--store-image", required=True, metavar="REF")
    images.add_argument("--router-image", required=True, metavar="REF")
    parser.add_argument(
        "--watch-namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="may be repeated; default: all namespaces",
    )
    parser.add_argument("--cluster-domain", default="cluster.local")
    parser.add_argument("--leader-elect", action="store_true", help="act only while holding a Lease")
    parser.add_argument(
        "--lease-name",
        default="disaggregated-inference-operator",
        metavar="NAME",
        help="the Lease, in this pod's namespace: one for all replicas of an install, and its own (%(default)s)",
    )
    parser.add_argument(
        "--resync-seconds",
        type=_positive(float),
        default=600.0,
        metavar="S",
        help="look at every resource at least this often (%(default)s)",
    )
    parser.add_argument(
        "--workers", type=_positive(int), default=8, metavar="N", help="resources worked on at once (%(default)s)"
    )
    parser.add_argument("--metrics-port", type=int, default=8080, help="/metrics; 0 for none (%(default)s)")
    parser.add_argument("--health-port", type=int, default=8081, help="/healthz; 0 for none (%(default)s)")
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    parser.add_argument("--log-format", choices=["json", "text"], default="text")
    return parser


def read_settings(argv: Sequence[str] | None = None) -> Settings:
    """Settings from the command line; the pod's own name and namespace from the downward API."""
    given = build_parser().parse_args(argv)
    images = Images(given.engine_image_cuda, given.engine_image_cpu, given.store_image, given.router_image)
    return Settings(
        pins=Pins(images),
        watch_namespaces=tuple(given.watch_namespace),
        cluster_domain=given.cluster_domain,
        namespace=os.environ.get("POD_NAMESPACE", "default"),
        identity=os.environ.get("POD_NAME", f"process-{os.getpid()}"),
        leader_elect=given.leader_elect,
        lease_name=given.lease_name,
        resync_seconds=given.resync_seconds,
        workers=given.workers,
        metrics_port=given.metrics_port,
        health_port=given.health_port,
        log_level=given.log_level,
        log_format=given.log_format,
    )
