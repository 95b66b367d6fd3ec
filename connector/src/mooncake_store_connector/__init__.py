"""KV through a Mooncake store for vLLM.

Importing this package needs the standard library alone. vLLM, torch and Mooncake are imported by the modules that
run inside an engine: `v1` and `v0`.
"""

__version__ = "0.1.0"
