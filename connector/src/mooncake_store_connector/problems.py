"""How bad configuration is told: where, what was found, and what would be right. Secrets are never repeated."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `path` names the field, `found` what is there, `remedy` what would be right."""

    path: str
    found: str
    remedy: str

    def __str__(self) -> str:
        """One sentence."""
        return f"{self.path}: {self.found}; {self.remedy}"


class ConfigError(ValueError):
    """Configuration that cannot be used. `problems` has every fault that was found."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems
