"""Words of engines that are known not to say what is wrong, and what to do about them."""

import re
from typing import Final

# Memory is free, and yet there is none: the limits are those of locked memory and of the NIC.
_MEMORY_REGION: Final = (
    "under RDMA no memory lacks: raise the node's memlock limit, or lower spec.kvStore.segmentSize to what the NIC "
    "takes as one region (ibv_devinfo -v: max_mr_size)"
)
_REMEDIES: Final = (
    (re.compile(r"max_mr_size|ibv_reg_mr|register memory|cannot allocate memory", re.IGNORECASE), _MEMORY_REGION),
)
_MAX_LINE: Final = 120


def find_remedy(log: str) -> str:
    """The known line at the end of an engine's log with its remedy; empty when nothing in it is known."""
    for line in reversed(log.splitlines()):
        for words, remedy in _REMEDIES:
            if words.search(line):
                return f"{line.strip()[-_MAX_LINE:]}; {remedy}"
    return ""
