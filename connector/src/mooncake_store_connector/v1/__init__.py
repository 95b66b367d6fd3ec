"""The connector for vLLM's current engine: `--kv-transfer-config` names it by `kv_connector_module_path`.

Its class stands for now on vLLM's own store connector and adds the hand-off from prefill to decode. It is to be
replaced by one of our own under the same name. Importing this module imports vLLM.
"""

from mooncake_store_connector.v1.interim import MooncakeStoreConnector

__all__ = ["MooncakeStoreConnector"]
