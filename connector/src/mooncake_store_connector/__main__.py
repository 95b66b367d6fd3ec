"""`python -m mooncake_store_connector`: what an engine pod runs before its engine, checks of its config, a doctor."""

import argparse
import json
import sys
from pathlib import Path

from mooncake_store_connector.client import StoreUnavailable
from mooncake_store_connector.config import normalise_config
from mooncake_store_connector.doctor.arguments import add_parser
from mooncake_store_connector.durations import parse_duration_ms
from mooncake_store_connector.prepare import leave_note, prepare, read_object
from mooncake_store_connector.problems import ConfigError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mooncake_store_connector", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare_ = commands.add_parser("prepare", help="write this pod's config file and wait for the store")
    prepare_.add_argument("--template", type=Path, required=True, help="the file that all pods share")
    prepare_.add_argument("--output", type=Path, required=True, help="where this pod's own file goes")
    prepare_.add_argument("--wait-master", default="60s", help="how long to wait for the store, such as 60s")
    prepare_.add_argument("--master-health-url", help="URL of the master's health page; else its port is tried")
    prepare_.add_argument("--interface", help="network interface whose address KV travels on; else POD_IP")
    check = commands.add_parser("check", help="check a config file")
    check.add_argument("--config", type=Path, required=True)
    add_parser(commands)
    return parser


def _check(path: Path) -> int:
    config = normalise_config(read_object(path.read_text()), path=path.name)
    for warning in config.warnings:
        print(f"warning: {warning}")
    print(json.dumps(config.values, indent=2, sort_keys=True))
    return 0


def main() -> int:
    """Run a command. Bad configuration is told on standard error, one line for each problem; exit status 2."""
    arguments = _parser().parse_args()
    try:
        if arguments.command == "check":
            return _check(arguments.config)
        if arguments.command == "doctor":
            from mooncake_store_connector.doctor import cli  # noqa: PLC0415 - needs what `prepare` must not

            return cli.run(arguments)
        wait_ms = parse_duration_ms(arguments.wait_master, "--wait-master")
        prepared = prepare(
            arguments.template,
            arguments.output,
            interface=arguments.interface,
            health_url=arguments.master_health_url,
            wait_ms=wait_ms,
        )
    except ConfigError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    except (OSError, ValueError, StoreUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(prepared.told, flush=True)
    leave_note(prepared.obstacle)
    return 0


if __name__ == "__main__":
    sys.exit(main())
