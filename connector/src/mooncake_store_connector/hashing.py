"""Whether block hashes are the same in every process: if not, engines never find what another one stored."""

from typing import Final

from mooncake_store_connector.problems import Problem

# Of these vLLM draws a random seed for each process, unless PYTHONHASHSEED is set.
_SEEDED: Final = ("xxhash",)


def find_hash_problem(algorithm: str, hash_seed: str | None) -> Problem | None:
    """What is wrong with vLLM's `--prefix-caching-hash-algo` and the environment's PYTHONHASHSEED; None if nothing is.

    The seed is part of every hash, so engines that share a store need the same one; here only a seed that can never be
    shared is found.
    """
    seed = hash_seed.strip().lower() if hash_seed is not None else None
    if seed == "random":
        found = "found random, with which block hashes differ in every process"
        return Problem("PYTHONHASHSEED", found, "set the same number on all engines, such as 0")
    if seed is None and algorithm.startswith(_SEEDED):
        found = f"not set, with which hashes by {algorithm} differ in every process"
        return Problem("PYTHONHASHSEED", found, "set the same number on all engines, such as 0, or use sha256")
    return None


def describe_seed(hash_seed: str | None) -> str:
    """What PYTHONHASHSEED makes of block hashes, as text: engines find each other's blocks only where it is equal."""
    return "unset" if hash_seed is None else hash_seed
