"""The connector on a real Mooncake, and in real vLLM engines."""
