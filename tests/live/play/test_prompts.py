"""Requests as engines take them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs.trace import Trace
from disaggroute.live.play.prompts import HIGHEST, LOWEST, Requests


def trace_of(prompts: list[int], outputs: list[int]) -> Trace:
    n = len(prompts)
    columns = {name: np.zeros(n, np.int64) for name in ("arrival", "slo", "family", "ttft_target", "tpot_target")}
    return Trace(prompt=np.array(prompts), output=np.array(outputs), **columns)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=5), st.integers(0, 2**62))
def test_lengths_are_exact_and_answers_can_be_no_shorter_and_no_longer(lengths: list[tuple[int, int]], s: int) -> None:
    prompts, outputs = [each[0] for each in lengths], [each[1] for each in lengths]
    requests = Requests(trace_of(prompts, outputs), None, "tiny", s, 0)
    for k, (prompt, output) in enumerate(lengths):
        request = requests.make(k, 5)
        body = request.body
        assert len(body["prompt"]) == request.prompt == prompt
        assert all(LOWEST <= token <= HIGHEST for token in body["prompt"])
        assert (body["max_tokens"], body["min_tokens"], request.limit) == (output, output, output)
        assert body["ignore_eos"] is True and body["stream"] is True and body["model"] == "tiny"
        assert request.arrival == 5 and request.output_hint is None


def test_prompts_are_those_of_the_seed_and_new_in_every_episode() -> None:
    trace = trace_of([40, 40], [1, 1])
    made = {
        (seed, episode): [Requests(trace, None, "tiny", seed, episode).make(k, 0).body["prompt"] for k in (0, 1)]
        for seed in (0, 1)
        for episode in (0, 1)
    }
    assert made[0, 0] == [Requests(trace, None, "tiny", 0, 0).make(k, 0).body["prompt"] for k in (0, 1)]
    flat = [tuple(prompt) for pair in made.values() for prompt in pair]
    assert len(set(flat)) == len(flat)


def test_requests_of_one_seed_have_names_of_their_own() -> None:
    trace = trace_of([4], [1])
    assert len({Requests(trace, None, "tiny", 0, 0).make(0, 0).id for _ in range(20)}) == 20


def test_a_static_predictor_is_passed_on_as_a_hint() -> None:
    predicted = np.array([17], np.int32)
    assert Requests(trace_of([4], [1]), predicted, "tiny", 0, 0).make(0, 0).output_hint == 17
