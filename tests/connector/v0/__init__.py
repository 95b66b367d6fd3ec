"""The V0 connector between processes, and beside the original."""
