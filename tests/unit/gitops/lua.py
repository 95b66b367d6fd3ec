"""Runs a health check for Argo CD with a real Lua, as narrowly as Argo CD does."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SCRIPT: Final = Path(__file__).parents[3] / "docs" / "gitops" / "health.lua"
# Argo CD's Lua is 5.1. A check in argocd-cm has the base and table libraries alone: not even strings have methods.
_DRIVER: Final = """\
getmetatable("").__index = nil
local check = assert(loadfile(arg[1]))
local base = {"assert", "error", "getmetatable", "ipairs", "next", "pairs", "pcall", "rawequal", "rawget", "rawset",
  "select", "setmetatable", "tonumber", "tostring", "type", "unpack", "table"}
local world = {obj = OBJECT}
for _, name in ipairs(base) do world[name] = _G[name] end
setfenv(check, world)
local health = check()
assert(type(health) == "table" and type(health.status) == "string" and type(health.message) == "string")
io.write(health.status, "\\n", health.message)
"""


@dataclass(frozen=True)
class Health:
    """What Argo CD shows of an object."""

    status: str
    message: str


def ask_health(body: Any, script: Path = SCRIPT) -> Health:
    """What the health check says of an object. Raises CalledProcessError where it fails."""
    program = _DRIVER.replace("OBJECT", lua_literal(body))
    done = subprocess.run(["lua5.1", "-", str(script)], input=program, capture_output=True, text=True, check=True)
    status, _, message = done.stdout.partition("\n")
    return Health(status, message)


def lua_literal(value: Any) -> str:
    """A JSON value as Lua writes it; null is nil, as Argo CD hands it over."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{_quote(key)}] = {lua_literal(child)}" for key, child in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(lua_literal, value)) + "}"
    if value is None or isinstance(value, bool):
        return {None: "nil", True: "true", False: "false"}[value]
    return _quote(value) if isinstance(value, str) else repr(value)


def _quote(text: str) -> str:
    return '"' + "".join(f"\\{byte:03d}" for byte in text.encode()) + '"'
