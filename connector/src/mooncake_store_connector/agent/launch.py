"""Starting an agent beside an engine, and starting it again when it dies."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

logger = logging.getLogger("vllm.mooncake_store_connector")

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_STEADY_SECONDS: Final = 60.0


class AgentProcess:
    """The agent of an engine. `keep_alive` is cheap and may be called at every step."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._next_start = 0.0
        self._started = 0.0
        self._pause = _FIRST_PAUSE
        self._next_look = 0.0

    def keep_alive(self) -> None:
        """Start the agent if none runs, but not too often."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _FIRST_PAUSE
        if self._process is not None and self._process.poll() is not None:
            logger.warning("The store agent ended with status %s; starting another", self._process.returncode)
            self._forget(now)
        if self._process is None and now >= self._next_start:
            self._start(now)

    def _start(self, now: float) -> None:
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        self._started = now
        # -P: a program's own folder or the working directory must not hide a module.
        command = [sys.executable, "-P", "-m", "mooncake_store_connector.agent", self._name]
        try:
            env = {**os.environ, "PYTHONPATH": path}
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=env)  # noqa: S603 - our own program
        except OSError as error:
            logger.warning("The store agent cannot be started, serving without the store: %s", error)
            self._next_start = now + _LONGEST_PAUSE

    def _forget(self, now: float) -> None:
        if now - self._started > _STEADY_SECONDS:
            self._pause = _FIRST_PAUSE
        self._next_start = now + self._pause
        self._pause = min(_LONGEST_PAUSE, self._pause * 2)
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None

    def stop(self) -> None:
        """Let it end: its pipe closes. It is killed if it does not within a few seconds."""
        process, self._process = self._process, None
        self._next_look = float("inf")
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
