"""The one exception that people see without a traceback."""


class ClusterError(RuntimeError):
    """Something that the user can act on. The message says what was found, where, and what would be right."""
