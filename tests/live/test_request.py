"""Clients' requests: what the router reads from them, and one sentence for each that it refuses."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from disaggroute.live.excerpt import LONGEST, excerpt
from disaggroute.live.request import REFUSED, Refused, Request, parse
from disaggroute.live.two_legs import CHAT, COMPLETIONS

from .json_values import JSON

TIGHT, LOOSE = 0, 1
MESSAGES = [{"role": "user", "content": "Hello"}]


def parsed(fields: Any, headers: dict[bytes, bytes] | None = None, path: str = COMPLETIONS) -> Request:
    body = fields if isinstance(fields, bytes) else orjson.dumps(fields)
    return parse(path, body, headers or {}, "tiny", 7)


def completion(**fields: Any) -> Request:
    return parsed({"prompt": [1, 2, 3], **fields})


def chat(**fields: Any) -> Request:
    return parsed({"messages": MESSAGES, **fields}, path=CHAT)


def refusal(fields: Any, headers: dict[bytes, bytes] | None = None, path: str = COMPLETIONS) -> Refused:
    with pytest.raises(Refused) as refused:
        parsed(fields, headers, path)
    return refused.value


# --- what is read ---------------------------------------------------------------------------------------------------


def test_a_plain_completion_is_read() -> None:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 5, "temperature": 0.5, "anything": {"else": [1]}}
    request = parsed(body)
    assert request.body == body
    assert (request.path, request.chat, request.stream, request.show_usage) == (COMPLETIONS, False, False, False)
    assert (request.slo, request.output_hint, request.prompt, request.limit) == (LOOSE, None, 0, 5)
    assert request.arrival == 7


def test_a_plain_chat_is_read() -> None:
    request = chat(stream=True, stream_options={"include_usage": True})
    assert request.chat and request.stream and request.show_usage
    assert (request.prompt, request.limit) == (0, None)


@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": "tiny"}])
def test_the_model_may_be_left_out(model: dict[str, Any]) -> None:
    assert completion(**model).prompt == 3


@pytest.mark.parametrize(
    ("prompt", "tokens", "sent"),
    [
        ([5, 6], 2, [5, 6]),
        ("text", 0, "text"),
        (["text"], 0, "text"),
        ([[5, 6, 7]], 3, [5, 6, 7]),
        ([0], 1, [0]),
        ([1 << 30], 1, [1 << 30]),
    ],
)
def test_a_prompt_is_a_text_or_tokens_or_a_batch_of_one(prompt: Any, tokens: int, sent: Any) -> None:
    request = completion(prompt=prompt)
    assert (request.prompt, request.body["prompt"]) == (tokens, sent)


def test_a_completion_that_does_not_say_gets_sixteen_tokens_and_one_that_says_null_as_many_as_fit() -> None:
    assert completion().limit == 16
    assert completion(max_tokens=None).limit is None


def test_a_chat_has_two_names_for_its_limit() -> None:
    assert chat(max_tokens=5).limit == 5
    assert chat(max_tokens=5, max_completion_tokens=9).limit == 9
    assert chat(max_tokens=5, max_completion_tokens=None).limit == 5
    assert completion(max_completion_tokens=9).limit == 16  # which has only one


@pytest.mark.parametrize("stream", [None, False])
def test_null_is_like_leaving_out(stream: Any) -> None:
    request = completion(stream=stream, stream_options=None, metadata=None, n=None, best_of=1)
    assert not request.stream


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_an_unsupported_parameter_that_asks_for_nothing_is_taken(value: Any) -> None:
    for key in REFUSED:
        assert completion(**{key: value}).prompt == 3


def test_the_class_and_the_expected_length_come_from_metadata() -> None:
    request = completion(metadata={"slo": "tight", "output_tokens": 40, "other": 1})
    assert (request.slo, request.output_hint) == (TIGHT, 40)
    assert completion(metadata={"output_tokens": "40"}).output_hint == 40
    nothing = completion(metadata={"slo": None, "output_tokens": None})
    assert (nothing.slo, nothing.output_hint) == (LOOSE, None)


def test_headers_beat_metadata() -> None:
    headers = {b"x-disaggroute-slo": b"tight", b"x-disaggroute-output-tokens": b"0000012"}
    request = parsed({"prompt": [1], "metadata": {"slo": "loose", "output_tokens": 40}}, headers)
    assert (request.slo, request.output_hint) == (TIGHT, 12)


def test_a_good_header_beats_bad_metadata() -> None:
    headers = {b"x-disaggroute-slo": b"loose", b"x-disaggroute-output-tokens": b"3"}
    request = parsed({"prompt": [1], "metadata": {"slo": 5, "output_tokens": -1}}, headers)
    assert (request.slo, request.output_hint) == (LOOSE, 3)


def test_a_request_keeps_its_name_and_gets_one_of_its_own_otherwise() -> None:
    assert parsed({"prompt": [1]}, {b"x-request-id": b"abc 1"}).id == "abc 1"
    made = [parsed({"prompt": [1]}, {b"x-request-id": b""}).id for _ in range(3)]
    assert len(set(made)) == 3 and all(made)


# --- what is refused ------------------------------------------------------------------------------------------------

LIMIT = "it must be an integer from 1 to 1073741824"
PROMPT = "it must be a text or a list of token ids"
TOKENS = "prompt holds something that is no token id; they are integers of at least 0"
CLASSES = "unknown SLO class"


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"n": 2}, "n", "n is 2; only 1 is supported"),
        ({"n": 0}, "n", "n is 0; only 1 is supported"),
        ({"n": True}, "n", "n is True; only 1 is supported"),
        ({"n": 1.0}, "n", "n is 1.0; only 1 is supported"),
        ({"best_of": "1"}, "best_of", "best_of is '1'; only 1 is supported"),
        *(({key: 1}, key, f"{key} is not supported by this router; leave it out") for key in REFUSED),
        ({"prompt_logprobs": 0}, "prompt_logprobs", "prompt_logprobs is not supported by this router; leave it out"),
        (
            {"kv_transfer_params": {"do_remote_prefill": True}},
            "kv_transfer_params",
            "kv_transfer_params is not supported by this router; leave it out",
        ),
        (
            {"vllm_xargs": {"kv_transfer_params": "x"}},
            "vllm_xargs",
            "vllm_xargs.kv_transfer_params is not supported by this router; leave it out",
        ),
        ({"stream": "yes"}, "stream", "stream is 'yes'; it must be true or false"),
        ({"stream": 1}, "stream", "stream is 1; it must be true or false"),
        ({"stream": 0}, "stream", "stream is 0; it must be true or false"),
        ({"stream_options": [1]}, "stream_options", "stream_options is [1]; it must be an object"),
        ({"stream_options": True}, "stream_options", "stream_options is True; it must be an object"),
        (
            {"stream_options": {"include_usage": True}},
            "stream_options",
            "stream_options is given, but stream is not true; leave it out",
        ),
        ({"metadata": "tight"}, "metadata", "metadata is 'tight'; it must be an object"),
        ({"metadata": {"slo": "tihgt"}}, "metadata.slo", f"metadata.slo: {CLASSES} 'tihgt'; nearest: tight"),
        ({"metadata": {"slo": 3}}, "metadata.slo", f"metadata.slo: {CLASSES} '3'; allowed: loose, tight"),
        ({"metadata": {"slo": ["tight"]}}, "metadata.slo", f"metadata.slo: {CLASSES} \"['tight']\"; nearest: tight"),
        ({"metadata": {"output_tokens": 0}}, "metadata.output_tokens", f"metadata.output_tokens is 0; {LIMIT}"),
        ({"metadata": {"output_tokens": -1}}, "metadata.output_tokens", f"metadata.output_tokens is -1; {LIMIT}"),
        ({"metadata": {"output_tokens": True}}, "metadata.output_tokens", f"metadata.output_tokens is True; {LIMIT}"),
        ({"metadata": {"output_tokens": 5.0}}, "metadata.output_tokens", f"metadata.output_tokens is 5.0; {LIMIT}"),
        ({"metadata": {"output_tokens": "٣"}}, "metadata.output_tokens", f"metadata.output_tokens is '٣'; {LIMIT}"),
        ({"metadata": {"output_tokens": "5 "}}, "metadata.output_tokens", f"metadata.output_tokens is '5 '; {LIMIT}"),
        ({"max_tokens": 0}, "max_tokens", f"max_tokens is 0; {LIMIT}"),
        ({"max_tokens": True}, "max_tokens", f"max_tokens is True; {LIMIT}"),
        ({"max_tokens": "5"}, "max_tokens", f"max_tokens is '5'; {LIMIT}"),
        ({"max_tokens": 1.5}, "max_tokens", f"max_tokens is 1.5; {LIMIT}"),
        ({"max_tokens": 2**64 - 1}, "max_tokens", f"max_tokens is 18446744073709551615; {LIMIT}"),
        ({"prompt": None}, "prompt", f"prompt is missing; {PROMPT}"),
        ({"prompt": {"a": 1}}, "prompt", f"prompt is {{'a': 1}}; {PROMPT}"),
        ({"prompt": 5}, "prompt", f"prompt is 5; {PROMPT}"),
        ({"prompt": False}, "prompt", f"prompt is False; {PROMPT}"),
        ({"prompt": ""}, "prompt", "prompt is empty; it must hold at least one token"),
        ({"prompt": []}, "prompt", "prompt is empty; it must hold at least one token"),
        ({"prompt": [[]]}, "prompt", "prompt is empty; it must hold at least one token"),
        ({"prompt": [""]}, "prompt", "prompt is empty; it must hold at least one token"),
        ({"prompt": ["a", "b"]}, "prompt", "prompt is a batch of 2; send them one by one"),
        ({"prompt": [[1], [2], [3]]}, "prompt", "prompt is a batch of 3; send them one by one"),
        ({"prompt": [["a"]]}, "prompt", TOKENS),
        ({"prompt": [1, "a"]}, "prompt", TOKENS),
        ({"prompt": [True]}, "prompt", TOKENS),
        ({"prompt": [-1]}, "prompt", TOKENS),
        ({"prompt": [1.0]}, "prompt", TOKENS),
        ({"prompt": [None]}, "prompt", TOKENS),
        ({"prompt": [(1 << 30) + 1]}, "prompt", TOKENS),
    ],
)
def test_each_bad_field_of_a_completion_has_its_sentence(fields: dict[str, Any], param: str, sentence: str) -> None:
    refused = refusal({"prompt": [1], **fields})
    assert (str(refused), refused.status, refused.param) == (sentence, 400, param)
    assert refused.kind == "invalid_request_error" and refused.retry_after_s is None
    assert orjson.loads(refused.body) == {
        "error": {"message": sentence, "type": "invalid_request_error", "param": param, "code": 400}
    }


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"messages": None}, "messages", "messages is missing; it must be a list of at least one message"),
        ({"messages": []}, "messages", "messages is []; it must be a list of at least one message"),
        ({"messages": "Hi"}, "messages", "messages is 'Hi'; it must be a list of at least one message"),
        ({"messages": ["Hi"]}, "messages", "messages is ['Hi']; it must be a list of at least one message"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", f"max_completion_tokens is 0; {LIMIT}"),
        ({"max_tokens": -3}, "max_tokens", f"max_tokens is -3; {LIMIT}"),
    ],
)
def test_each_bad_field_of_a_chat_has_its_sentence(fields: dict[str, Any], param: str, sentence: str) -> None:
    refused = refusal({"messages": MESSAGES, **fields}, path=CHAT)
    assert (str(refused), refused.status, refused.param) == (sentence, 400, param)


@pytest.mark.parametrize(
    ("headers", "param", "sentence"),
    [
        ({b"x-disaggroute-slo": b""}, "x-disaggroute-slo", f"x-disaggroute-slo: {CLASSES} ''; allowed: loose, tight"),
        (
            {b"x-disaggroute-slo": b"\xff\xfe"},
            "x-disaggroute-slo",
            f"x-disaggroute-slo: {CLASSES} 'ÿþ'; allowed: loose, tight",
        ),
        (
            {b"x-disaggroute-output-tokens": b"\xb2"},
            "x-disaggroute-output-tokens",
            f"x-disaggroute-output-tokens is '²'; {LIMIT}",
        ),
        (
            {b"x-disaggroute-output-tokens": b"000000000001" + b"9" * 20},
            "x-disaggroute-output-tokens",
            f"x-disaggroute-output-tokens is '00000000000199999999999999999999'; {LIMIT}",
        ),
        (
            {b"x-disaggroute-output-tokens": b"1073741825"},
            "x-disaggroute-output-tokens",
            f"x-disaggroute-output-tokens is '1073741825'; {LIMIT}",
        ),
        (
            {b"x-request-id": b"a\xff"},
            "x-request-id",
            "x-request-id is b'a\\xff'; it must be up to 200 printable ASCII characters",
        ),
        (
            {b"x-request-id": b"a\tb"},
            "x-request-id",
            "x-request-id is b'a\\tb'; it must be up to 200 printable ASCII characters",
        ),
    ],
)
def test_each_bad_header_has_its_sentence(headers: dict[bytes, bytes], param: str, sentence: str) -> None:
    refused = refusal({"prompt": [1]}, headers)
    assert (str(refused), refused.status, refused.param) == (sentence, 400, param)


def test_a_name_of_200_characters_is_taken_and_one_more_refused() -> None:
    assert parsed({"prompt": [1]}, {b"x-request-id": b"a" * 200}).id == "a" * 200
    refused = refusal({"prompt": [1]}, {b"x-request-id": b"a" * 201})
    assert refused.param == "x-request-id" and len(str(refused)) < 200


@pytest.mark.parametrize("digits", [b"9" * 5_000, b"0" * 5_000 + b"1"])
def test_a_number_longer_than_python_reads_is_refused(digits: bytes) -> None:
    assert refusal({"prompt": [1]}, {b"x-disaggroute-output-tokens": digits}).status == 400


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("tinny", "The model 'tinny' does not exist; this router serves 'tiny'."),
        ("", "The model '' does not exist; this router serves 'tiny'."),
        (5, "The model 5 does not exist; this router serves 'tiny'."),
    ],
)
def test_another_model_is_not_found(asked: Any, sentence: str) -> None:
    refused = refusal({"model": asked, "prompt": [1]})
    assert (str(refused), refused.status, refused.param, refused.kind) == (sentence, 404, "model", "NotFoundError")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"{'a': 1}", b"\xff\xfe", b'{"a": NaN}', b'{"a": Infinity}', b'{"temperature": 1e999}'),
        *(b'{"a": 1} {}', b'{"prompt": "\\ud800"}', b"[" * 5_000 + b"]" * 5_000),
    ],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    refused = refusal(body)
    assert str(refused).startswith("the body is not valid JSON (") and refused.param is None


@pytest.mark.parametrize(("body", "kind"), [(b"[]", "list"), (b"null", "NoneType"), (b'"a"', "str"), (b"5", "int")])
def test_what_is_no_object_is_refused(body: bytes, kind: str) -> None:
    assert str(refusal(body)) == f"the body holds a {kind}; it must be a JSON object"


DEEP = b"[" * 1_000 + b"]" * 1_000


@pytest.mark.parametrize(
    "field",
    ["model", "n", "stream", "stream_options", "metadata", "max_tokens", "prompt", "messages", "kv_transfer_params"],
)
def test_a_value_a_thousand_lists_deep_is_refused_in_a_short_sentence(field: str) -> None:
    path = CHAT if field == "messages" else COMPLETIONS
    refused = refusal(b'{"%b": %b}' % (field.encode(), DEEP), path=path)
    assert refused.param == field and len(str(refused)) < 200


@pytest.mark.parametrize("key", ["slo", "output_tokens"])
def test_metadata_a_thousand_lists_deep_is_refused_in_a_short_sentence(key: str) -> None:
    refused = refusal(b'{"prompt": [1], "metadata": {"%b": %b}}' % (key.encode(), DEEP))
    assert refused.param == f"metadata.{key}" and len(str(refused)) < 200


def test_a_class_of_a_million_letters_is_refused_in_a_short_sentence() -> None:
    assert len(str(refusal({"prompt": [1], "metadata": {"slo": "t" * 1_000_000}}))) < 200


FIELDS = st.sampled_from(
    [
        *("model", "prompt", "messages", "max_tokens", "max_completion_tokens", "n", "best_of", "stream"),
        *("stream_options", "metadata", "vllm_xargs", *REFUSED),
    ]
)
METADATA = st.dictionaries(st.sampled_from(["slo", "output_tokens"]), JSON, max_size=2)
HEADERS = st.dictionaries(
    st.sampled_from([b"x-disaggroute-slo", b"x-disaggroute-output-tokens", b"x-request-id"]),
    st.binary(max_size=12) | st.from_regex(rb"[0-9]{1,12}", fullmatch=True),
)


def parsed_or_refused(path: str, body: bytes, headers: dict[bytes, bytes]) -> None:
    try:
        request = parse(path, body, headers, "tiny", 0)
    except Refused as refused:
        assert orjson.loads(refused.body)["error"]["code"] == refused.status
        assert len(str(refused)) < 400 and str(refused).isprintable()
        return
    assert request.slo in (TIGHT, LOOSE) and request.prompt >= 0
    assert request.limit is None or request.limit >= 1
    assert request.output_hint is None or request.output_hint >= 1
    assert 0 < len(request.id) <= 200
    request.id.encode("ascii")


@given(st.sampled_from([COMPLETIONS, CHAT]), st.dictionaries(FIELDS, JSON | METADATA, max_size=6), HEADERS)
@example(COMPLETIONS, {"prompt": [[[[1]]]]}, {})
def test_whatever_json_comes_is_read_or_refused(path: str, fields: dict[str, Any], headers: dict[bytes, bytes]) -> None:
    parsed_or_refused(path, orjson.dumps(fields), headers)
    parsed_or_refused(path, orjson.dumps({"prompt": [1], "messages": MESSAGES} | fields), headers)


@given(st.sampled_from([COMPLETIONS, CHAT]), st.binary(max_size=40), HEADERS)
def test_whatever_bytes_come_are_read_or_refused(path: str, body: bytes, headers: dict[bytes, bytes]) -> None:
    parsed_or_refused(path, body, headers)


@given(JSON)
def test_an_excerpt_is_short_and_on_one_line(value: Any) -> None:
    assert 0 < len(excerpt(value)) <= LONGEST and "\n" not in excerpt(value)


def test_an_excerpt_of_something_short_is_all_of_it() -> None:
    for value in ("abc", [1, {"a": None}], {"b": 1.5}, b"\x00", True):
        assert excerpt(value) == repr(value)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(("deep", "taken"), [(254, True), (255, False), (900, False)])
def test_a_body_that_could_not_be_written_again_is_refused(path: str, deep: int, taken: bool) -> None:
    inner = "[" * (deep - 1) + "]" * (deep - 1)
    body = f'{{"prompt": "a", "messages": [{{"role": "user", "content": "a"}}], "x": {inner}}}'.encode()
    if taken:
        assert orjson.dumps(parse(path, body, {}, "tiny", 0).body)
    else:
        with pytest.raises(Refused, match="nested too deeply; at most 254 lists and objects"):
            parse(path, body, {}, "tiny", 0)
