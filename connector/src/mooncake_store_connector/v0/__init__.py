"""The connector for vLLM 0.9's first engine ("V0"), and what it stood on that current vLLM no longer has.

`install` puts it in the place of vLLM's own. Names are loaded when they are first used: most need torch, none vLLM.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mooncake_store_connector.v0.base import KVConnectorBase
    from mooncake_store_connector.v0.connector import MooncakeStoreConnector
    from mooncake_store_connector.v0.counts import Count
    from mooncake_store_connector.v0.intermediate import IntermediateTensors
    from mooncake_store_connector.v0.kv_helper import ModelAwareKVHelper
    from mooncake_store_connector.v0.plugin import install
    from mooncake_store_connector.v0.settings import Settings
    from mooncake_store_connector.v0.store import MooncakeStore

__all__ = [
    "Count",
    "IntermediateTensors",
    "KVConnectorBase",
    "ModelAwareKVHelper",
    "MooncakeStore",
    "MooncakeStoreConnector",
    "Settings",
    "install",
]

_HOMES: Final = {
    "Count": "counts",
    "IntermediateTensors": "intermediate",
    "KVConnectorBase": "base",
    "MooncakeStore": "store",
    "MooncakeStoreConnector": "connector",
    "ModelAwareKVHelper": "kv_helper",
    "Settings": "settings",
    "install": "plugin",
}


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
