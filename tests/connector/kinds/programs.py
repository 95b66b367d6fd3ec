"""The engines of `engine.py` and the models of `models.py`, as tests speak with them."""

import json
import os
import random
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connector.engines import transfer_config, write_store_config
from connector.environment import program
from connector.v0.programs import Worker

_HERE = Path(__file__).parent
VOCABULARY = 512
ANSWER_TOKENS = 24
TURNS = 3
ASK = {"mooncake_store": {"v": 1}}
NO_DAMAGE: Mapping[str, object] = {}
# A busy machine may take its time.
PATIENCE: Mapping[str, object] = {"wait_ms": 20_000, "save_wait_ms": 20_000}


@dataclass(frozen=True)
class Case:
    """A kind of model, tokens in a block, and ranks."""

    kind: str
    block: int
    ranks: int = 1

    def __str__(self) -> str:
        return f"{self.kind}-block{self.block}-tp{self.ranks}"

    def prompts(self) -> list[list[int]]:
        """Some that end in a block, at its end, and right after it; of two the longest prefix is the same."""
        draw = random.Random(f"{self.kind} {self.block}")
        lengths = [5 * self.block + 7, 8 * self.block, 7 * self.block + 1, 3 * self.block + self.block // 2]
        return [[draw.randrange(VOCABULARY) for _ in range(length)] for length in lengths]

    def openings(self) -> list[list[int]]:
        """What users say first. An answer begins in a block, at its start, and right before its end."""
        draw = random.Random(f"{self.kind} {self.block} openings")
        lengths = [3 * self.block + 5, 4 * self.block, 5 * self.block - 1]
        return [[draw.randrange(VOCABULARY) for _ in range(length)] for length in lengths]

    def follow(self, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> list[list[int]]:
        """The next turn's prompts: all that was said, and more from the user."""
        draw = random.Random(f"{self.kind} {self.block} {len(prompts[0])}")
        said = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        return [[*one, *(draw.randrange(VOCABULARY) for _ in range(self.block + 3))] for one in said]

    def alike(self) -> list[list[int]]:
        """Prompts that begin with the same four blocks, and end in their own ways."""
        draw = random.Random(f"{self.kind} {self.block} alike")
        prefix = [draw.randrange(VOCABULARY) for _ in range(4 * self.block)]
        lengths = [1, self.block // 2, self.block, 2 * self.block + 3]
        return [[*prefix, *(draw.randrange(VOCABULARY) for _ in range(length))] for length in lengths]

    def loadable(self, prompts: Sequence[list[int]]) -> int:
        """Tokens of all prompts that whole blocks can give: one token of each is always computed."""
        return sum((len(prompt) - 1) // self.block * self.block for prompt in prompts)


@dataclass(frozen=True)
class Turn:
    """What is asked in one turn of some conversations, and the right answers."""

    prompts: list[list[int]]
    ids: list[list[int]]


@dataclass(frozen=True)
class Right:
    """What an engine without a connector answers: to a case's prompts, in its conversations, to prompts alike."""

    prompts: list[list[int]]
    turns: list[Turn]
    alike: list[list[int]]


@dataclass(frozen=True)
class Answers:
    """What came of prompts that were asked together."""

    ids: list[list[int]]
    params: list[dict[str, Any] | None]
    loaded: int
    seconds: float
    each: list[float]
    """Seconds from asking to each one's last token."""


class Engine(Worker):
    """One engine at a time, of one case after the other."""

    def __init__(self, folder: Path, models: Path, master_port: int, **changes: str) -> None:
        """On the store whose master has this port, when it shares KV. `changes` are of the environment's variables."""
        self.log = folder / "engine.log"
        self._folder = folder
        self._models = models
        self._damage = folder / "damage.json"
        # vLLM leaves its sockets there.
        (folder / "t").mkdir(parents=True)
        env = {
            "TMPDIR": str(folder / "t"),
            "HF_HUB_OFFLINE": "1",
            "KV_DAMAGE": str(self._damage),
            "MOONCAKE_CONFIG_PATH": str(write_store_config(folder, master_port)),
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_NO_USAGE_STATS": "1",
            **changes,
        }
        super().__init__("engine", self.log, env, program("python"), _HERE / "engine.py")

    def open(  # type: ignore[override]
        self, case: Case, *, shares: bool = True, extra: Mapping[str, object] = PATIENCE
    ) -> None:
        """Start an engine with our connector, of these options, or with none."""
        options: dict[str, object] = {
            "model": str(self._models / case.kind),
            "block_size": case.block,
            "tensor_parallel_size": case.ranks,
            "max_model_len": 2048,
        }
        if case.kind == "recurrent":
            # vLLM's code for CPUs fails on chunks that end where cached blocks do.
            options["enable_prefix_caching"] = False
        if shares:
            options["kv_transfer_config"] = _transfer(extra)
        self("open", options, seconds=1200)

    def agent(self) -> int:
        """The process id of its agent, where it has one rank."""
        return int(self("agent"))

    def lead(self, master_port: int, **changes: object) -> None:
        """Write other values into its config file, which it reads when it has to join a store again."""
        write_store_config(self._folder, master_port, **changes)

    def wait_shared(self, case: Case, seconds: float = 120) -> None:
        """Until what it stores is there for it."""
        prompt, deadline = [1] * (2 * case.block), time.monotonic() + seconds
        while True:
            params = self.ask([prompt], [ASK], max_tokens=1).params
            if params[0] is not None and self.ask([prompt], params, max_tokens=1).loaded:
                return
            assert time.monotonic() < deadline, f"nothing is shared within {seconds} s, see {self.log}"
            time.sleep(0.2)

    def ask(
        self,
        prompts: Sequence[list[int]],
        params: Sequence[dict[str, Any] | None] | None = None,
        damage: Mapping[str, object] = NO_DAMAGE,
        max_tokens: int = ANSWER_TOKENS,
    ) -> Answers:
        """Answers that owe nothing to the engine's own cache. What is loaded is damaged if wished."""
        self._damage.write_text(json.dumps(dict(damage)))
        assert self("forget")
        given = list(params) if params is not None else [None] * len(prompts)
        return Answers(**self("generate", list(prompts), max_tokens, given, seconds=900))

    def close(self) -> None:
        """End it, its workers and its agent."""
        try:
            self("close", seconds=60)
        finally:
            self.stop()


def _transfer(extra: Mapping[str, object]) -> dict[str, Any]:
    """As the operator's, but that what it loads can be damaged."""
    config: dict[str, Any] = json.loads(transfer_config(**extra))
    return {**config, "kv_connector_module_path": "connector.kinds.damaged"}


def make_models(folder: Path) -> None:
    """Each kind of model in a folder of its name."""
    command = ["nice", program("python"), str(_HERE / "models.py"), str(folder)]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    subprocess.run(command, check=True, timeout=300, env=env)
