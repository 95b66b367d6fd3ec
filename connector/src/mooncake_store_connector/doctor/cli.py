"""The doctor's commands: examine an engine's store, describe a namespace, compare two."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mooncake_store_connector.client import read_config
from mooncake_store_connector.descriptor import Descriptor, describe, read_descriptor
from mooncake_store_connector.doctor.bounded import Deadline
from mooncake_store_connector.doctor.compare import find_differences, format_comparison, format_comparison_json
from mooncake_store_connector.doctor.examine import examine, find_config
from mooncake_store_connector.doctor.report import Finding, exit_status, format_json, format_line
from mooncake_store_connector.doctor.stored import fetch_descriptor
from mooncake_store_connector.prepare import read_object
from mooncake_store_connector.problems import ConfigError, Problem


def run(arguments: argparse.Namespace) -> int:
    """Run a command; the exit status. Raises ConfigError where the command line is no use, StoreUnavailable."""
    deadline = Deadline(arguments.timeout)
    if arguments.action == "describe":
        descriptor = fetch_descriptor(read_config(find_config(arguments.config)), arguments.namespace, deadline)
        print(json.dumps(describe(descriptor), indent=2, sort_keys=True))
        return 0
    if arguments.action == "compare":
        return _compare(arguments, deadline)
    return _examine(arguments, deadline)


def _examine(arguments: argparse.Namespace, deadline: Deadline) -> int:
    extra = None if arguments.extra is None else _read_extra(arguments.extra)
    findings: list[Finding] = []
    for finding in examine(arguments.config, extra, deadline):
        findings.append(finding)
        if not arguments.json:
            print(format_line(finding), flush=True)
    if arguments.json:
        print(format_json(findings))
    return exit_status(findings)


def _compare(arguments: argparse.Namespace, deadline: Deadline) -> int:
    first, second = (_read_side(side, arguments.config, deadline) for side in (arguments.first, arguments.second))
    differences = find_differences(first, second)
    shown = format_comparison_json if arguments.json else format_comparison
    print(shown(first, second, differences))
    return int(bool(differences))


def _read_side(side: str, config: Path | None, deadline: Deadline) -> Descriptor:
    """One side of a comparison: a file if there is one of this name, else a namespace."""
    path = Path(side)
    if path.is_file():
        return read_descriptor(path.read_text(), side)
    if path.suffix == ".json" or len(path.parts) > 1:
        raise ConfigError([Problem(side, "no such file", "name a file, or a namespace without slashes")])
    return fetch_descriptor(read_config(find_config(config)), side, deadline)


def _read_extra(text: str) -> Mapping[str, Any]:
    """The extra config, from its text or from a file."""
    try:
        return read_object(text if text.lstrip().startswith("{") else Path(text).read_text())
    except ConfigError as error:
        told = [Problem("--extra", problem.found, "write one JSON object") for problem in error.problems]
        raise ConfigError(told) from error
