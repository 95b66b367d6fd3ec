"""What the doctor found: a line each for people, or JSON for programs. Secrets are hidden here, in all of it."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

_CREDENTIALS: Final = re.compile(r"(?<=://)[^\s'\"]*@|[^\s/'\"@,]*:(?!//)[^\s'\"]*@")
_PARAMETER: Final = re.compile(r"(?i)((?:pass\w*|token|secret|auth\w*|credential\w*|api_?key)=)[^\s&'\",;]+")


class Level(Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """What one check found, and what to do about it."""

    level: Level
    check: str
    found: str
    remedy: str = ""


def format_line(finding: Finding) -> str:
    """The finding as a line of text."""
    told = f"{finding.level.value:<8} {finding.check}: {finding.found}"
    return hide_secrets(f"{told}; {finding.remedy}" if finding.remedy else told)


def format_json(findings: Iterable[Finding]) -> str:
    """All findings as JSON."""
    rows = [
        {"level": one.level.value, "check": one.check, "found": one.found, "remedy": one.remedy} for one in findings
    ]
    hidden = [{name: hide_secrets(value) for name, value in row.items()} for row in rows]
    return json.dumps({"ok": not any(row["level"] == Level.FAIL.value for row in rows), "findings": hidden}, indent=2)


def exit_status(findings: Sequence[Finding]) -> int:
    """1 if anything failed; warnings do not count."""
    return int(any(one.level is Level.FAIL for one in findings))


def hide_secrets(text: str) -> str:
    """The text without user names, passwords and tokens of the addresses in it."""
    return _PARAMETER.sub(r"\1***", _CREDENTIALS.sub("***@", text))
