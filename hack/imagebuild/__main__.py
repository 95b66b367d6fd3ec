"""`python -m imagebuild build | push | refs | model | prune`. `model` makes the test model and prints its folder."""

import argparse
import json
import sys

from cluster.locks import exclusive

from imagebuild import build, model, registry
from imagebuild.buildah import BuildError
from imagebuild.catalog import IMAGES, MODEL

ALL = [*(image.name for image in IMAGES), MODEL]


def main() -> int:
    """Run a command; a failed step is told with the end of its output."""
    parser = argparse.ArgumentParser(prog="imagebuild", description=__doc__)
    parser.add_argument("command", choices=["build", "push", "refs", "model", "prune"])
    parser.add_argument("names", nargs="*", help=f"images; default all of {', '.join(ALL)}")
    parser.add_argument("--registry", default=registry.LOCAL_REGISTRY, help="registry and path")
    parser.add_argument("--all", action="store_true", help="prune: remove every image")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(ALL):
        parser.error(f"no such image: {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    try:
        if arguments.command == "refs":
            print(json.dumps(registry.references(arguments.registry), indent=2))
        else:
            with exclusive("images"):
                _change(arguments)
    except BuildError as error:
        print(f"imagebuild: {error}", file=sys.stderr)
        return 1
    return 0


def _change(arguments: argparse.Namespace) -> None:
    if arguments.command == "build":
        build.build_all(arguments.names or ALL)
    elif arguments.command == "push":
        registry.push_all(arguments.registry, arguments.names or ALL)
    elif arguments.command == "prune":
        build.prune(everything=arguments.all)
    else:
        build.make_model()
        print(model.model_dir())


if __name__ == "__main__":
    sys.exit(main())
