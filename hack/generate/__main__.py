"""`python -m generate` writes all generated files; with `--check` it tells which are stale and ends with 1."""

import argparse
import sys
from pathlib import Path

from generate import api_reference, chart, connector_metrics, connector_v0, crd

ROOT = Path(__file__).parents[2]
MODULES = (crd, api_reference, chart, connector_v0, connector_metrics)


def stale_files(root: Path) -> dict[Path, str]:
    """Generated files whose content is not what it would be now, with that content."""
    wanted = {path: text for module in MODULES for path, text in module.outputs(root).items()}
    return {path: text for path, text in wanted.items() if not path.exists() or path.read_text() != text}


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(prog="generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 when a file is stale")
    arguments = parser.parse_args()
    stale = stale_files(ROOT)
    for path, text in stale.items():
        if arguments.check:
            print(f"stale: {path.relative_to(ROOT)}; run `make generate`", file=sys.stderr)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
