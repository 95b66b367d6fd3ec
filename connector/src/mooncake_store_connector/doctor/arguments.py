"""The doctor's command line. Apart from what it does: the program's other commands must run with little installed."""

import argparse
from pathlib import Path
from typing import Final

_ABOUT: Final = "Examine an engine's store, describe a namespace, or compare two."
_SECONDS: Final = 30.0


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `doctor` to the program's commands."""
    doctor = commands.add_parser("doctor", help="examine a store, or tell who would share KV", description=_ABOUT)
    _add_options(doctor, config=None, timeout=_SECONDS)
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument("--extra", help="kv_connector_extra_config, as JSON or a file of it")
    actions = doctor.add_subparsers(dest="action")
    # What these leave out stays as it is: they must not undo what stands before them.
    left = argparse.SUPPRESS
    describe = actions.add_parser("describe", help="print the descriptor of a namespace from the store")
    describe.add_argument("namespace")
    compare = actions.add_parser("compare", help="tell whether two engines would share KV, and if not, why")
    for name in ("first", "second"):
        compare.add_argument(name, help="a descriptor's file, or a namespace that is in the store")
    compare.add_argument("--json", action="store_true", default=left, help="print JSON")
    for action in (describe, compare):
        _add_options(action, config=left, timeout=left)


def _add_options(parser: argparse.ArgumentParser, *, config: object, timeout: object) -> None:
    parser.add_argument("--config", type=Path, default=config, help="the config file; else MOONCAKE_CONFIG_PATH")
    parser.add_argument(
        "--timeout", type=_seconds, default=timeout, metavar="S", help=f"seconds for all of it; {_SECONDS:g} by default"
    )


def _seconds(text: str) -> float:
    if not text.replace(".", "", 1).isdigit() or not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, such as 30")
    return float(text)
