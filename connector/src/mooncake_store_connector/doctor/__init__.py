"""`python -m mooncake_store_connector doctor`: is this engine's store fit for use, and who would share KV with whom.

Works where neither vLLM nor torch is installed. Mooncake is imported in processes beside, which can be ended: its calls
may hang.
"""
