"""The ConfigMap with `mooncake_config.json`: one file for all readers, without any pod's own address."""

import json
from typing import Final

from disagg_operator.api.names import config_map_name
from disagg_operator.build.inputs import Context, Manifest
from disagg_operator.build.objects import build_object
from disagg_operator.build.store_config import derive_store_config

CONFIG_KEY: Final = "mooncake_config.json"


def build_config_map(context: Context) -> Manifest:
    """The store's configuration. `local_hostname` is added in each pod, where its address is known."""
    text = json.dumps(derive_store_config(context.resource).values, indent=2, sort_keys=True) + "\n"
    return build_object(context, "v1", "ConfigMap", config_map_name(context.name), None, data={CONFIG_KEY: text})
