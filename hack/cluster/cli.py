"""The command line: `python -m cluster <command>`."""

import argparse
import json
import sys
from collections.abc import Sequence

from cluster import paths, registry
from cluster.errors import ClusterError
from cluster.locks import exclusive


def registry_up(_: argparse.Namespace) -> int:
    """Start the image registry."""
    with exclusive("registry"):
        started = registry.up()
    print(f"registry: {'started' if started else 'already running'} on {registry.ADDRESS}")
    return 0


def registry_down(_: argparse.Namespace) -> int:
    """Stop the image registry; its images stay in the cache."""
    with exclusive("registry"):
        stopped = registry.down()
    print(f"registry: {'stopped' if stopped else 'was not running'}")
    return 0


def where(_: argparse.Namespace) -> int:
    """Print where things are, as JSON."""
    places = {
        "kubeconfig": paths.kubeconfig(),
        "bin": paths.binaries(),
        "auditLog": paths.audit_log(),
        "state": paths.STATE,
        "cache": paths.cache(),
    }
    print(json.dumps({name: str(path) for name, path in places.items()}, indent=2))
    return 0


def build_parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    parser = argparse.ArgumentParser(prog="cluster", description="The local Kubernetes of this project.")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, act in {"registry-up": registry_up, "registry-down": registry_down, "where": where}.items():
        commands.add_parser(name, help=act.__doc__).set_defaults(act=act)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0 done, 1 not, 2 wrong usage."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.act(arguments))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return 130
