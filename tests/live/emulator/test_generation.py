"""A request says what the engine's KV makes it say."""

from __future__ import annotations

from disaggroute.live.emulator.generation import Generation, Remote


def test_wrong_kv_gives_wrong_tokens_until_it_is_computed_anew() -> None:
    right = Generation("a", 5, 123, 12, None)
    wrong = Generation("b", 5, 123, 12, None)
    wrong.has_pulled(124)
    assert wrong.bring_to(6) != right.bring_to(6)
    wrong.tokens[:] = right.tokens
    wrong.recomputed()
    assert wrong.bring_to(12) == right.bring_to(12)


def test_a_remote_is_read_from_parameters_of_any_shape() -> None:
    whole = {"remote_engine_id": "e", "remote_request_id": "r", "remote_host": "h", "remote_port": 7}
    assert Remote.of(whole | {"remote_block_ids": [[1, 2], [3]]}) == Remote("e", "r", [1, 2, 3], "h", 7)
    assert Remote.of(whole | {"remote_block_ids": [4, 5]}).blocks == [4, 5]
    assert Remote.of(whole | {"remote_block_ids": [["x"]]}).blocks is None
    assert Remote.of({"remote_host": "h"}).missing() == ("remote_engine_id", "remote_request_id", "remote_port")
