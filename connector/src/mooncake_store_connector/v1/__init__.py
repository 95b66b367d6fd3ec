"""The connector for vLLM's current engine: `--kv-transfer-config` names it by `kv_connector_module_path`.

Importing this package imports nothing else; vLLM is imported with the class, which vLLM itself asks for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mooncake_store_connector.v1.connector import MooncakeStoreConnector

__all__ = ["MooncakeStoreConnector"]


def __getattr__(name: str) -> Any:
    if name == "MooncakeStoreConnector":
        from mooncake_store_connector.v1.connector import MooncakeStoreConnector  # noqa: PLC0415 - imports vLLM

        return MooncakeStoreConnector
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
