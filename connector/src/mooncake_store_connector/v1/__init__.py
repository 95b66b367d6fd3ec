"""The connector for vLLM's current engine: `--kv-transfer-config` names it by `kv_connector_module_path`.

Importing this module imports vLLM.
"""

from mooncake_store_connector.v1.connector import MooncakeStoreConnector

__all__ = ["MooncakeStoreConnector"]
