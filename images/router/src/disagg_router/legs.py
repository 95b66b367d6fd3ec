"""What each leg of a request is sent. Pure: bytes and dictionaries in, bytes and dictionaries out.

Leg 1 (prefill) gets a copy of the body that asks for one token and no extras: its use is the KV it leaves in the store.
Leg 2 (decode) gets the client's bytes as they came, with prefill's `kv_transfer_params` added at the end.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

Body = dict[str, object]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PD_PATHS = frozenset({CHAT, COMPLETIONS})
PARAMS = "kv_transfer_params"

# Fields that change the answer but not which KV is computed. Some are errors beside one token, some only cost time.
_NOT_FOR_PREFILL = frozenset(
    {
        "stream_options",
        "min_tokens",
        "best_of",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "echo",
        "return_token_ids",
        PARAMS,
    }
)

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# These tell of the connection to this router and of the body's form on it. A packed body was unpacked as it came in.
_OURS_TO_WRITE = frozenset({"host", "content-length", "content-encoding", "expect"})


class Route(StrEnum):
    """How a request is answered."""

    PD = "pd"
    DECODE_ONLY = "decode_only"
    DIRECT = "direct"


@dataclass(frozen=True)
class Plan:
    """What is to be done with a request. `reason` says why a prompt skips prefill."""

    route: Route
    body: Body | None = None
    reason: str = ""


def is_prompt(method: str, path: str) -> bool:
    """Whether this is a request that prefill and decode can share."""
    return method == "POST" and path in PD_PATHS


def plan_request(method: str, path: str, raw: bytes) -> Plan:
    """How to answer the request. A body that cannot be read goes to decode, whose error is the one clients know."""
    if not is_prompt(method, path):
        return Plan(Route.DIRECT)
    body = parse_body(raw)
    if body is None:
        return Plan(Route.DECODE_ONLY, reason="unreadable_body")
    if computes_prompt_itself(body):
        return Plan(Route.DECODE_ONLY, body, reason="needs_whole_prompt")
    return Plan(Route.PD, body)


def parse_body(raw: bytes) -> Body | None:
    """The JSON object of a body, or None when it is none (or nests too deep to be one)."""
    try:
        body = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def computes_prompt_itself(body: Body) -> bool:
    """Whether decode must compute the whole prompt anyway, so that a prefill would be wasted.

    Log probabilities of the prompt need every position's output; embeddings as input have no token ids to share KV by.
    """
    if body.get("prompt_logprobs") is not None or body.get("prompt_embeds") is not None:
        return True
    return bool(body.get("echo")) and body.get("logprobs") is not None


def derive_prefill_body(path: str, body: Body, params: Mapping[str, object]) -> Body:
    """Leg 1's body: the same prompt, one token, one answer, no stream. `params` is what the connector wants to hear."""
    prefill = {key: value for key, value in body.items() if key not in _NOT_FOR_PREFILL}
    prefill |= {"max_tokens": 1, "n": 1, "stream": False, PARAMS: dict(params)}
    if path == CHAT or "max_completion_tokens" in body:
        prefill["max_completion_tokens"] = 1
    return prefill


def derive_decode_body(raw: bytes, body: Body | None, params: Mapping[str, object] | None) -> bytes:
    """Leg 2's body: the client's bytes, with `params` spliced in before the last brace.

    A client's own `kv_transfer_params` never reach an engine: they name where KV is read from. Then, and only then, the
    body is written anew.
    """
    if body is None:
        return raw
    if PARAMS in body:
        kept: Body = {key: value for key, value in body.items() if key != PARAMS}
        if params:
            kept[PARAMS] = dict(params)
        return encode(kept)
    if not params:
        return raw
    head = raw.rstrip()[:-1]
    comma = b"," if body else b""
    return head + comma + b'"' + PARAMS.encode() + b'":' + encode(dict(params)) + b"}"


def params_for_decode(body: Body, answer: object) -> Body | None:
    """The `kv_transfer_params` of prefill's answer that decode may use.

    An answer to several prompts carries the params of one: they would be wrong for the others, so none are used.
    """
    if not isinstance(answer, dict) or has_many_prompts(body):
        return None
    params = answer.get(PARAMS)
    return params if isinstance(params, dict) and params else None


def has_many_prompts(body: Body) -> bool:
    """Whether a completion request holds more than one prompt. A list of numbers is one prompt of token ids."""
    prompt = body.get("prompt")
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)


def encode(body: Body) -> bytes:
    """A body as compact JSON. Escaped to ASCII: a lone surrogate in a client's string has no UTF-8 form."""
    return json.dumps(body, separators=(",", ":")).encode("ascii")


def forward_headers(headers: Iterable[tuple[str, str]], *, drop: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    """End-to-end headers, in order. Hop-by-hop headers stay here, those that `Connection` names included."""
    pairs = list(headers)
    named = {token.strip().lower() for key, value in pairs if key.lower() == "connection" for token in value.split(",")}
    gone = _HOP_BY_HOP | named | drop
    return [(key, value) for key, value in pairs if key.lower() not in gone]


def request_headers(headers: Iterable[tuple[str, str]], *, keep_authorization: bool) -> list[tuple[str, str]]:
    """A client's headers as an engine gets them. A key that was for this router ends here."""
    drop = _OURS_TO_WRITE if keep_authorization else _OURS_TO_WRITE | {"authorization"}
    return forward_headers(headers, drop=drop)


def prefill_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Leg 1's headers. Its answer is read here, so it must come as plain JSON."""
    return [(key, value) for key, value in headers if key.lower() not in {"accept", "accept-encoding"}]
