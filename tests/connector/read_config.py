"""Prints what each real parser makes of config files, as one list. Runs in the engine's environment, without pytest."""

import dataclasses
import json
import sys

from mooncake.mooncake_config import MooncakeConfig
from vllm.distributed.mooncake_store import MooncakeStoreConfig

if __name__ == "__main__":
    results = []
    for path in sys.argv[1:]:
        readers = {"vllm": MooncakeStoreConfig.from_file(path), "mooncake": MooncakeConfig.from_file(path)}
        results.append({name: dataclasses.asdict(config) for name, config in readers.items()})
    print("RESULT " + json.dumps(results))
