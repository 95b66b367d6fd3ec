"""Puts the connector in the place of vLLM's own, where vLLM still has one."""

import importlib
import importlib.util
import logging
from pathlib import Path
from typing import Final

logger = logging.getLogger("vllm.mooncake_store_connector.v0")

_PACKAGE: Final = "vllm.distributed.kv_transfer.kv_connector"
_ORIGINAL: Final = Path("distributed", "kv_transfer", "kv_connector", "mooncake_store_connector.py")


def install() -> bool:
    """Make vLLM 0.9's first engine ("V0") use this class for `kv_connector: MooncakeStoreConnector`.

    Its factory takes no second class of a name, and asks that a class has its own base: so ours takes the entry, and is
    registered as a virtual subclass. vLLM calls this as a plugin in each of its processes. Without vLLM, or with a
    version that has no V0 connectors, nothing happens and nothing is imported. Returns whether it was installed.
    """
    if not _is_there():
        return False
    from mooncake_store_connector.v0.connector import NAME, MooncakeStoreConnector  # noqa: PLC0415 - only where needed

    factory = importlib.import_module(f"{_PACKAGE}.factory").KVConnectorFactory
    importlib.import_module(f"{_PACKAGE}.base").KVConnectorBase.register(MooncakeStoreConnector)
    factory._registry[NAME] = lambda: MooncakeStoreConnector
    logger.info("%s of vLLM's V0 engine is now that of mooncake_store_connector", NAME)
    return True


def _is_there() -> bool:
    """Whether vLLM has a connector of this name for V0. Newer versions have it elsewhere, for V1."""
    found = importlib.util.find_spec("vllm")
    places = found.submodule_search_locations or () if found is not None else ()
    return any((Path(place) / _ORIGINAL).is_file() for place in places)
