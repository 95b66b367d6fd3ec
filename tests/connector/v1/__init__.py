"""The V1 connector under vLLM's own scheduler classes."""
