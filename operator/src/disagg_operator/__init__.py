"""The operator for DisaggregatedInference resources.

Layers, each importing only those to its left: api <- build, plan, status <- kube <- reconcile <- handlers.
"""

__version__ = "0.1.0"
