"""The two legs: what each engine is sent, and which handovers no decode engine must ever see."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.live.two_legs import (
    NAMED_SINCE,
    PARAMETERS,
    BadHandover,
    counted,
    decode_leg,
    handover,
    prefill_leg,
    version_of,
)

from .json_values import JSON, OBJECT
from .samples import sample

V032 = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[61, 62, 63, 68]],
    "remote_engine_id": "3b71423f",
    "remote_request_id": "cmpl-abc-2-0-b2e0bd5b",
    "remote_host": "127.0.0.1",
    "remote_port": 18110,
    "tp_size": 1,
    "remote_blocks_expiry_time": None,
}
V016 = {**V032, "remote_block_ids": [61, 62, 63, 68]}
V012 = {key: value for key, value in V016.items() if key != "remote_request_id"}

KEPT = {"model": "tiny", "temperature": 0, "tools": [{"type": "function"}], "cache_salt": "x", "logit_bias": {"3": 1}}

# --- the legs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [{"prompt": [1, 2, 3]}, {"messages": [{"role": "user", "content": "Hello"}]}])
def test_a_prefill_leg_asks_for_one_token_that_nothing_stops_and_keeps_what_shapes_the_prompt(
    prompt: dict[str, Any],
) -> None:
    body = {
        **prompt,
        **KEPT,
        **{"max_tokens": 50, "max_completion_tokens": 60, "min_tokens": 40, "ignore_eos": False},
        **{"stop": ["x"], "stop_token_ids": [7], "stream": True, "stream_options": {"include_usage": True}},
    }
    before = copy.deepcopy(body)
    leg = prefill_leg(body)
    assert leg == {
        **prompt,
        **KEPT,
        **{"max_tokens": 1, "ignore_eos": True, "stream": False},
        PARAMETERS: {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        },
    }
    assert body == before


def test_prefill_legs_do_not_share_what_they_ask() -> None:
    one, other = prefill_leg({}), prefill_leg({})
    one[PARAMETERS]["do_remote_decode"] = False
    assert other[PARAMETERS]["do_remote_decode"] is True


@given(OBJECT, OBJECT)
def test_a_decode_leg_is_the_request_with_the_parameters_whole_and_as_they_came(
    body: dict[str, Any], given: dict[str, Any]
) -> None:
    body = body | {"stream": False}
    before, came = copy.deepcopy(body), orjson.dumps(given)
    leg = decode_leg(body, given)
    assert leg == before | {PARAMETERS: given}
    assert orjson.dumps(leg[PARAMETERS]) == came and body == before


@given(OBJECT)
def test_whatever_more_a_prefill_engine_hands_over_goes_on_whole(more: dict[str, Any]) -> None:
    parameters = more | V032
    came = orjson.dumps(parameters)
    handed = handover(orjson.loads(orjson.dumps({"id": "cmpl-1", PARAMETERS: parameters})))
    assert orjson.dumps(decode_leg({"prompt": "a"}, handed)[PARAMETERS]) == came


def test_a_streamed_decode_leg_asks_for_the_final_counts() -> None:
    leg = decode_leg({"stream": True, "stream_options": {"continuous_usage_stats": True}}, V032)
    assert leg["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}
    assert "stream_options" not in decode_leg({"stream": False}, V032)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_counts_are_asked_for_whatever_the_client_said(options: Any) -> None:
    body = {"stream": True, "stream_options": options}
    assert counted(body)["stream_options"] == {"include_usage": True}
    assert body["stream_options"] == options


# --- the handover ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["prefill_leg", "chat_prefill_leg"])
def test_what_vllm_0_32_answers_is_a_handover(name: str) -> None:
    answer = orjson.loads(sample(name).body)
    assert handover(answer, (0, 32, 0)) is answer[PARAMETERS]


@pytest.mark.parametrize("name", ["decode_leg", "completion_plain"])
def test_an_answer_of_vllm_that_is_no_prefill_leg_carries_none(name: str) -> None:
    with pytest.raises(BadHandover, match=r"^the prefill answer carries no kv_transfer_params$"):
        handover(orjson.loads(sample(name).body), (0, 32, 0))


@pytest.mark.parametrize(
    ("parameters", "version"),
    [
        (V012, (0, 12, 0)),
        (V016, (0, 13, 0)),
        (V016, (0, 16, 0)),
        (V032, (0, 20, 0)),
        (V032, (0, 32, 0)),
        (V032, None),
        ({**V032, "remote_block_ids": [[5], []]}, (0, 32, 0)),  # a group of layers that holds nothing of this prompt
        ({**V012, "remote_request_id": "cmpl-1"}, (0, 12, 1)),
    ],
)
def test_each_version_may_hand_over_in_its_own_shape(
    parameters: dict[str, Any], version: tuple[int, ...] | None
) -> None:
    assert handover({PARAMETERS: parameters}, version) is parameters


@pytest.mark.parametrize("version", [None, NAMED_SINCE, (0, 13, 1), (0, 32, 0), (1, 0)])
def test_a_handover_without_the_name_of_its_request_is_refused_unless_the_version_gives_none(
    version: tuple[int, ...] | None,
) -> None:
    with pytest.raises(BadHandover, match=r"^remote_request_id is missing; it must be text that is not empty$"):
        handover({PARAMETERS: V012}, version)


@pytest.mark.parametrize(
    "key",
    [
        "do_remote_prefill",
        "remote_engine_id",
        "remote_host",
        "remote_port",
        "remote_block_ids",
        "remote_request_id",
    ],
)
def test_every_missing_field_is_named(key: str) -> None:
    parameters = {name: value for name, value in V032.items() if name != key}
    with pytest.raises(BadHandover, match=rf"^{key} is missing; it must be "):
        handover({PARAMETERS: parameters}, (0, 32, 0))


BLOCKS = "a list of block numbers that is not empty, or one for each group of layers"


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("do_remote_prefill", False, "do_remote_prefill is False; it must be true"),
        ("do_remote_prefill", 1, "do_remote_prefill is 1; it must be true"),
        ("remote_engine_id", "", "remote_engine_id is ''; it must be text that is not empty"),
        ("remote_engine_id", None, "remote_engine_id is None; it must be text that is not empty"),
        ("remote_host", 7, "remote_host is 7; it must be text that is not empty"),
        ("remote_port", True, "remote_port is True; it must be a port"),
        ("remote_port", 0, "remote_port is 0; it must be a port"),
        ("remote_port", 65_536, "remote_port is 65536; it must be a port"),
        ("remote_port", "18110", "remote_port is '18110'; it must be a port"),
        ("remote_block_ids", [], f"remote_block_ids is []; it must be {BLOCKS}"),
        ("remote_block_ids", [[]], f"remote_block_ids is [[]]; it must be {BLOCKS}"),
        ("remote_block_ids", [[], []], f"remote_block_ids is [[], []]; it must be {BLOCKS}"),
        ("remote_block_ids", [1, [2]], f"remote_block_ids is [1, [2]]; it must be {BLOCKS}"),
        ("remote_block_ids", ["1"], f"remote_block_ids is ['1']; it must be {BLOCKS}"),
        ("remote_block_ids", [-1], f"remote_block_ids is [-1]; it must be {BLOCKS}"),
        ("remote_block_ids", [True], f"remote_block_ids is [True]; it must be {BLOCKS}"),
        ("remote_block_ids", {"0": 1}, f"remote_block_ids is {{'0': 1}}; it must be {BLOCKS}"),
        ("remote_request_id", "", "remote_request_id is ''; it must be text that is not empty"),
    ],
)
def test_every_field_that_a_decode_engine_cannot_use_is_named(key: str, value: Any, sentence: str) -> None:
    with pytest.raises(BadHandover) as refusal:
        handover({PARAMETERS: V032 | {key: value}}, (0, 32, 0))
    assert str(refusal.value) == sentence


def test_an_old_engine_that_names_the_request_by_something_else_is_refused() -> None:
    with pytest.raises(BadHandover, match="remote_request_id is 5"):
        handover({PARAMETERS: V012 | {"remote_request_id": 5}}, (0, 12, 0))


@pytest.mark.parametrize("answer", [None, [], "x", {}, {PARAMETERS: None}, {PARAMETERS: {}}, {PARAMETERS: [1]}])
def test_an_answer_without_parameters_is_refused(answer: Any) -> None:
    with pytest.raises(BadHandover, match="carries no kv_transfer_params"):
        handover(answer)


@given(JSON, st.none() | st.tuples(st.integers(0, 1), st.integers(0, 40)))
def test_whatever_an_engine_answers_is_a_handover_or_refused(answer: Any, version: tuple[int, ...] | None) -> None:
    for said in (answer, {PARAMETERS: answer}, {PARAMETERS: {**V032, "remote_block_ids": answer}}):
        try:
            parameters = handover(said, version)
        except BadHandover:
            continue
        assert parameters["remote_block_ids"] and parameters["remote_request_id"]


# --- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.32.0", (0, 32, 0)),
        ("0.13.0rc1", (0, 13, 0)),
        ("v0.12.0", (0, 12, 0)),
        ("0.16", (0, 16)),
        ("0.12.1.dev5+gabc", (0, 12, 1)),
        ("1.0.0+cpu", (1, 0, 0)),
        ("", None),
        ("dev", None),
        ("12", None),
        (None, None),
        (0.32, None),
    ],
)
def test_a_version_is_read_as_numbers(text: Any, version: tuple[int, ...] | None) -> None:
    assert version_of(text) == version


def test_the_version_that_vllm_reports_is_read() -> None:
    assert version_of(orjson.loads(sample("version").body)["version"]) == (0, 32, 0)
