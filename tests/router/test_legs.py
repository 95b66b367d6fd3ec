"""What each leg is sent: examples of the field, and properties over any JSON."""

import json

import pytest
from disagg_router import legs
from disagg_router.legs import CHAT, COMPLETIONS, Route
from hypothesis import given
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
FIELDS = st.sampled_from(
    [
        "model",
        "prompt",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "n",
        "best_of",
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "echo",
        "stop",
        "tools",
        "response_format",
        "kv_transfer_params",
    ]
)
BODIES = st.dictionaries(FIELDS | st.text(max_size=12), JSON, max_size=12)
PATHS = st.sampled_from([CHAT, COMPLETIONS])


@given(path=PATHS, body=BODIES)
def test_prefill_asks_for_one_token_and_keeps_what_decides_kv(path: str, body: legs.Body) -> None:
    before = json.dumps(body)
    prefill = legs.derive_prefill_body(path, body, {"hint": 1})
    assert json.dumps(body) == before, "the client's body was changed"
    assert (prefill["max_tokens"], prefill["n"], prefill["stream"]) == (1, 1, False)
    assert prefill["kv_transfer_params"] == {"hint": 1}
    assert not prefill.keys() & {"stream_options", "min_tokens", "best_of", "logprobs", "top_logprobs", "echo"}
    assert prefill.get("max_completion_tokens", 1) == 1
    changed = {"max_tokens", "max_completion_tokens", "n", "stream", "kv_transfer_params"}
    for key in prefill.keys() - changed:
        assert prefill[key] == body[key]
    lost = body.keys() - prefill.keys()
    assert lost <= {
        "stream_options",
        "min_tokens",
        "best_of",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "echo",
        "return_token_ids",
    }


@given(body=BODIES, params=st.none() | BODIES, indent=st.none() | st.integers(0, 2), ascii_only=st.booleans())
def test_decode_gets_the_clients_bytes_and_the_params(
    body: legs.Body, params: legs.Body | None, indent: int | None, ascii_only: bool
) -> None:
    raw = json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") + b" \n"
    parsed = legs.parse_body(raw)
    sent = legs.derive_decode_body(raw, parsed, params)
    if parsed is None:  # a lone surrogate in raw UTF-8 is no UTF-8
        assert sent == raw
        return
    clean = {key: value for key, value in body.items() if key != "kv_transfer_params"}
    assert json.loads(sent) == clean | ({"kv_transfer_params": params} if params else {})
    if "kv_transfer_params" not in body:
        assert sent.startswith(raw.rstrip()[:-1]), "the client's bytes were changed"
        assert params or sent == raw


def test_bytes_that_json_would_write_otherwise_stay_as_they_are() -> None:
    raw = b'{"prompt": "\\u00e9\xc3\xa9","temperature": 1.50, "seed":12345678901234567890, "a":1,"a":2 }\r\n'
    sent = legs.derive_decode_body(raw, legs.parse_body(raw), {"k": "v"})
    assert sent == raw.rstrip()[:-1] + b',"kv_transfer_params":{"k":"v"}}'


def test_an_empty_object_gets_no_comma() -> None:
    assert legs.derive_decode_body(b"{ }", {}, {"k": 1}) == b'{ "kv_transfer_params":{"k":1}}'


def test_a_clients_own_params_never_pass() -> None:
    raw = b'{"prompt":"x","kv_transfer_params":{"remote_host":"10.0.0.1"}}'
    body = legs.parse_body(raw)
    assert json.loads(legs.derive_decode_body(raw, body, None)) == {"prompt": "x"}
    assert json.loads(legs.derive_decode_body(raw, body, {"ours": 1}))["kv_transfer_params"] == {"ours": 1}


@pytest.mark.parametrize("raw", [b"", b"[1]", b"{", b'{"a":}', b"\xff", b'"x"', b"[" * 100_000])
def test_an_unreadable_body_goes_to_decode_as_it_is(raw: bytes) -> None:
    plan = legs.plan_request("POST", CHAT, raw)
    assert (plan.route, plan.reason) == (Route.DECODE_ONLY, "unreadable_body")
    assert legs.derive_decode_body(raw, plan.body, {"k": 1}) == raw


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/embeddings"),
        ("GET", "/v1/chat/completions"),
        ("GET", "/version"),
        ("GET", "/metrics"),
        ("POST", "/tokenize"),
        ("POST", "/v1/chat/completions/render"),
        ("POST", "/v1/completions/"),
    ],
)
def test_all_else_goes_straight_to_decode(method: str, path: str) -> None:
    assert legs.plan_request(method, path, b"{}").route is Route.DIRECT


@pytest.mark.parametrize(
    "body", [{"prompt_logprobs": 1}, {"prompt_logprobs": 0}, {"echo": True, "logprobs": 0}, {"prompt_embeds": "AAA="}]
)
def test_a_prompt_that_decode_must_compute_skips_prefill(body: legs.Body) -> None:
    assert legs.plan_request("POST", COMPLETIONS, json.dumps(body).encode()).route is Route.DECODE_ONLY


@pytest.mark.parametrize("body", [{"prompt_logprobs": None}, {"echo": True}, {"echo": False, "logprobs": 3}])
def test_an_ordinary_prompt_takes_both_legs(body: legs.Body) -> None:
    assert legs.plan_request("POST", COMPLETIONS, json.dumps(body).encode()).route is Route.PD


@pytest.mark.parametrize(
    ("prompt", "used"),
    [("a", True), (["a"], True), ([1, 2, 3], True), ([[1, 2]], True), (["a", "b"], False), ([[1], [2]], False)],
)
def test_params_of_one_prompt_are_not_given_to_others(prompt: object, used: bool) -> None:
    params = legs.params_for_decode({"prompt": prompt}, {"kv_transfer_params": {"last": "x"}})
    assert (params is not None) is used


@pytest.mark.parametrize("answer", [None, [], "x", {}, {"kv_transfer_params": None}, {"kv_transfer_params": {}}])
def test_an_answer_without_params_gives_none(answer: object) -> None:
    assert legs.params_for_decode({"prompt": "a"}, answer) is None


def test_hop_by_hop_headers_and_keys_end_here() -> None:
    headers = [
        ("Host", "router"),
        ("Authorization", "Bearer sk"),
        ("Connection", "keep-alive, X-Secret-Hop"),
        ("X-Secret-Hop", "1"),
        ("Transfer-Encoding", "chunked"),
        ("traceparent", "00-1-2-01"),
        ("X-Request-Id", "r1"),
    ]
    assert legs.request_headers(headers, keep_authorization=False) == headers[-2:]
    assert legs.request_headers(headers, keep_authorization=True) == [headers[1], *headers[-2:]]
