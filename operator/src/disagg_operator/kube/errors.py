"""What can go wrong when talking to the API server, by what is to be done about it."""


class ApiError(Exception):
    """The API server refused, or could not be reached (status 0)."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def is_unreachable(self) -> bool:
        """Nobody answered: what else was to be done now will fail too."""
        return self.status == 0

    @property
    def is_conflict(self) -> bool:
        """The object changed meanwhile, or is another one by now: read again."""
        return self.status == 409

    @property
    def is_forbidden(self) -> bool:
        """A right is missing, or a quota or an admission rule says no."""
        return self.status == 403

    @property
    def is_invalid(self) -> bool:
        """The object itself is wrong: another try with the same content gets the same answer."""
        return self.status in (400, 413, 422)
