"""Starting and ending engines, on processes that behave as engines do."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from disaggroute.live.engines.launcher import EngineOptions, RealEngine, start_all
from disaggroute.live.engines.ports import free_port

HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
BROKEN = """
print("INFO starting"); print("(EngineCore pid=1) ERROR 11-30 ValueError: the block size is odd")
raise RuntimeError("Engine core initialization failed")
"""
INVALID = """
print("WARNING 11-30 this may give OSError: too many files"); print("Traceback (most recent call last):")
print("pydantic_core.ValidationError: 1 validation error for ModelConfig")
print("  Value error, the context is too long")
raise SystemExit(1)
"""
SILENT = "import time; time.sleep(600)"
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN); print("up", flush=True); time.sleep(600)
"""


class Pretended(RealEngine):
    """An engine whose process runs a text of Python in place of vLLM."""

    text = HEALTHY

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.text, *super().command()[2:]]


def pretended(tmp_path: Path, text: str, name: str = "engine") -> Pretended:
    engine = Pretended("decode", tmp_path, Path(sys.executable), tmp_path / "logs" / f"{name}.log")
    engine.text = text
    return engine


def test_an_engine_is_ready_when_it_answers_and_gone_when_the_block_ends(tmp_path: Path) -> None:
    with pretended(tmp_path, HEALTHY) as engine:
        engine.wait_ready(60)
        assert engine.alive and engine.healthy()
        with pytest.raises(RuntimeError, match=f"the decode engine on port {engine.port} runs already"):
            engine.start()
    assert not engine.alive and not engine.healthy()


def test_an_engine_that_was_killed_can_be_started_again(tmp_path: Path) -> None:
    engine = pretended(tmp_path, HEALTHY)
    for _ in range(2):
        with engine:
            engine.wait_ready(60)
            engine.kill()
            assert not engine.alive
            engine.kill()  # a second time is no error


def test_an_engine_that_ends_early_tells_the_first_error_of_its_log(tmp_path: Path) -> None:
    with pretended(tmp_path, BROKEN) as engine, pytest.raises(RuntimeError) as caught:
        engine.wait_ready(60)
    place = f"the decode engine on port {engine.port}"
    why = "ValueError: the block size is odd"
    assert str(caught.value) == f"{place} ended before it was ready ({why}); its log is {engine.log}"


def test_what_pydantic_says_is_told_and_warnings_are_not(tmp_path: Path) -> None:
    with pretended(tmp_path, INVALID) as engine, pytest.raises(RuntimeError, match=r"\(Value error, the context is "):
        engine.wait_ready(60)


def test_errors_of_an_earlier_start_are_not_told_again(tmp_path: Path) -> None:
    engine = pretended(tmp_path, BROKEN)
    with engine, pytest.raises(RuntimeError):
        engine.wait_ready(60)
    engine.text = "print('no luck')"
    with engine, pytest.raises(RuntimeError, match=r"ended before it was ready \(no luck\)"):
        engine.wait_ready(60)


def test_an_engine_that_never_answers_is_told_after_the_limit(tmp_path: Path) -> None:
    with pretended(tmp_path, SILENT) as engine, pytest.raises(RuntimeError, match=r"was not ready within 0\.5 s; "):
        engine.wait_ready(0.5)


def test_an_engine_that_does_not_end_when_asked_is_killed(tmp_path: Path) -> None:
    engine = pretended(tmp_path, STUBBORN)
    engine.start()
    while "up" not in engine.log.read_text():
        assert engine.alive
    engine.stop(limit_s=0.2)
    assert not engine.alive


def test_if_one_engine_cannot_start_the_others_are_killed(tmp_path: Path) -> None:
    good, bad = pretended(tmp_path, HEALTHY, "good"), pretended(tmp_path, BROKEN, "bad")
    with pytest.raises(RuntimeError, match="the block size is odd"):
        start_all([good, bad], 60)
    assert not good.alive and not bad.alive


def test_an_engine_that_was_not_started_has_no_process(tmp_path: Path) -> None:
    engine = pretended(tmp_path, HEALTHY)
    assert not engine.alive
    engine.stop()
    with pytest.raises(RuntimeError, match=r"the decode engine on port \d+ was not started"):
        _ = engine.pid


@pytest.mark.parametrize(("role", "kv_role"), [("prefill", "kv_producer"), ("decode", "kv_consumer"), ("mixed", None)])
def test_the_words_that_start_an_engine_follow_its_role_and_options(
    tmp_path: Path, role: str, kv_role: str | None
) -> None:
    options = EngineOptions(num_blocks=10, lease_s=7, kv_load_failure_policy="recompute", arguments=("--seed", "3"))
    engine = RealEngine(role, tmp_path, Path("python"), tmp_path / "log", options=options)  # type: ignore[arg-type]
    words = engine.command()
    assert words[words.index("--num-gpu-blocks-override") + 1] == "11"  # one is never used
    assert words[-2:] == ["--seed", "3"]
    if kv_role is None:
        assert "--kv-transfer-config" not in words
    else:
        transfer = json.loads(words[words.index("--kv-transfer-config") + 1])
        assert transfer["kv_role"] == kv_role and transfer["kv_load_failure_policy"] == "recompute"
        assert transfer["kv_connector_extra_config"] == {"kv_lease_duration": 7}
        assert engine.environment()["VLLM_NIXL_SIDE_CHANNEL_PORT"] == str(engine.side_channel_port)


def test_free_ports_differ_and_avoid_those_in_use() -> None:
    ports = {free_port() for _ in range(20)}
    assert len(ports) == 20
    with socket.socket() as taken:
        wanted = free_port() + 1
        taken.bind(("127.0.0.1", wanted))
        taken.listen()
        assert free_port() != wanted
