"""Puts the connector in the place of vLLM's own, where vLLM still has one."""

import importlib
import logging

from mooncake_store_connector.v0.connector import NAME, MooncakeStoreConnector

logger = logging.getLogger("vllm.mooncake_store_connector.v0")

_PACKAGE = "vllm.distributed.kv_transfer.kv_connector"


def install() -> bool:
    """Make vLLM 0.9's first engine ("V0") use this class for `kv_connector: MooncakeStoreConnector`.

    Its factory takes no second class of a name, and asks that a class has its own base: so ours takes the entry, and is
    registered as a virtual subclass. vLLM calls this as a plugin in each of its processes. Without vLLM, or with a
    version that has no V0 connectors, nothing happens. Returns whether it was installed.
    """
    try:
        factory = importlib.import_module(f"{_PACKAGE}.factory").KVConnectorFactory
        base = importlib.import_module(f"{_PACKAGE}.base").KVConnectorBase
    except (ImportError, AttributeError):
        return False
    if not hasattr(factory, "create_connector_v0") or NAME not in factory._registry:
        return False
    base.register(MooncakeStoreConnector)
    factory._registry[NAME] = lambda: MooncakeStoreConnector
    logger.info("%s of vLLM's V0 engine is now that of mooncake_store_connector", NAME)
    return True
