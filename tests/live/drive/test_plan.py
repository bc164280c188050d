"""What a run sends: lengths to the token, prompts that nobody has seen before, the class and the hint."""

from __future__ import annotations

import json

import numpy as np

from disaggroute.live.drive.plan import FIRST_TOKEN, TOKENS, Plan

from .traces import trace

TRACE = trace((0.0, 40, 7), (0.5, 40, 1), (0.5, 3, 9))


def plan(**changes: object) -> Plan:
    fields = {"trace": TRACE, "model": "tiny", "name": "run", "entropy": (5, 6)} | changes
    return Plan(**fields)  # type: ignore[arg-type]


def test_a_body_asks_for_the_traces_tokens_exactly() -> None:
    for k in range(3):
        body = json.loads(plan().body(k))
        assert len(body["prompt"]) == TRACE.prompt[k]
        assert body["max_tokens"] == body["min_tokens"] == TRACE.output[k]
        assert body["ignore_eos"] and body["stream"] and body["stream_options"] == {"include_usage": True}
        assert all(FIRST_TOKEN <= token < FIRST_TOKEN + TOKENS for token in body["prompt"])


def test_no_prompt_begins_like_another_one_of_this_or_of_another_run() -> None:
    seen = {tuple(each.prompt(k)[:12]) for each in (plan(), plan(entropy=(5, 7))) for k in (0, 1)}
    assert len(seen) == 4


def test_the_same_run_sends_the_same() -> None:
    assert plan().body(1) == plan().body(1)


def test_the_headers_say_who_it_is_how_strict_and_how_long() -> None:
    plain = plan().headers(2)
    assert b"x-request-id: run-2\r\n" in plain and b"x-disaggroute-slo: tight\r\n" in plain
    assert b"output-tokens" not in plain
    hinted = plan(predicted=np.array([4, 5, 6], np.int32)).headers(2)
    assert b"x-disaggroute-output-tokens: 6\r\n" in hinted
    loose = Plan(trace((0.0, 1, 1), slo=1), "tiny", "run", (1,))
    assert b"x-disaggroute-slo: loose\r\n" in loose.headers(0)
