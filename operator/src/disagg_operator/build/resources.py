"""Judges what a container's resources ask for: GPUs, RDMA devices."""

import re
from typing import Final

from disagg_operator.api.base import Resources

_GPU: Final = re.compile(r"^[^/]+/.*(gpu|mig-|npu|xpu|gaudi|ascend)", re.IGNORECASE)
_RDMA: Final = re.compile(r"^[^/]*(rdma|infiniband|roce|efa)|/.*(rdma|hca|infiniband|roce|efa|vf)", re.IGNORECASE)


def list_resource_names(resources: Resources) -> set[str]:
    """Names of all resources that are requested or limited."""
    return {*(resources.requests or {}), *(resources.limits or {})}


def asks_for_gpu(resources: Resources) -> bool:
    """Whether the user says which accelerators a pod gets, by a device plugin's resource or by a claim."""
    return bool(resources.claims) or any(_GPU.search(name) for name in list_resource_names(resources))


def asks_for_rdma(resources: Resources) -> bool:
    """Whether the user says which RDMA devices a pod gets."""
    return bool(resources.claims) or any(_RDMA.search(name) for name in list_resource_names(resources))
