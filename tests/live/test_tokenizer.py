"""Prompt lengths: by bytes, by the model's own files, and by asking an engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer as Model
from tokenizers import models, pre_tokenizers, processors

from disaggroute.live import tokenizer
from disaggroute.live.cluster_file import EngineEntry
from disaggroute.live.engine import Engine
from disaggroute.live.request import Refused, Request, parse
from disaggroute.live.tokenizer import BytesTokenizer, EngineTokenizer, FileTokenizer, Tokenizer, make, text
from disaggroute.live.two_legs import CHAT, COMPLETIONS

from .samples import sample
from .scripted_engine import ScriptedEngine
from .waiting import run

USER = {"role": "user", "content": "one two"}


def completion(prompt: str, **more: Any) -> Request:
    return parse(COMPLETIONS, orjson.dumps({"prompt": prompt, **more}), {}, "tiny", 0)


def chat(*messages: dict[str, Any], **more: Any) -> Request:
    return parse(CHAT, orjson.dumps({"messages": list(messages), **more}), {}, "tiny", 0)


def counted(by: Tokenizer, request: Request) -> int:
    return run(by.count(request))


def nothing() -> list[Engine]:
    return []


# --- bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompt", "tokens"), [("abc", 3), ("ü€", 5), (" ", 1)])
def test_bytes_are_counted_in_utf_8(prompt: str, tokens: int) -> None:
    assert counted(make("bytes", nothing), completion(prompt)) == tokens


def test_bytes_count_a_chat_as_the_tiny_model_does() -> None:
    """What vLLM said of this chat: 6 tokens of its beginning, the text, and 13 up to the start of the answer."""
    real = orjson.loads(sample("tokenize_chat").body)
    words = bytes(token - 3 for token in real["tokens"][6:-13]).decode()
    assert counted(BytesTokenizer(), chat({"role": "user", "content": words})) == real["count"] == 99


def test_bytes_count_the_start_of_the_answer_only_where_it_is_asked_for() -> None:
    with_start = counted(BytesTokenizer(), chat(USER))
    assert counted(BytesTokenizer(), chat(USER, add_generation_prompt=False)) == with_start - len("_assistant\n")


def test_a_message_may_come_in_parts_or_without_text() -> None:
    assert text("a") == "a" and text(None) == "" and text(5) == ""
    assert text([{"type": "text", "text": "a"}, {"type": "image_url"}, "b", 7]) == "a\nb"
    parts = {"role": "user", "content": [{"type": "text", "text": "one two"}]}
    assert counted(BytesTokenizer(), chat(parts)) == counted(BytesTokenizer(), chat(USER))
    assert counted(BytesTokenizer(), chat({"content": None, "tool_calls": []})) > 0


# --- the model's files ----------------------------------------------------------------------------------------------

WORDS = ["[UNK]", "<s>", "one", "two", "three", "user", "assistant", ":", "<", ">", "tool", "None"]
TURNS = "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} {% endfor %}"
START = "{% if add_generation_prompt %}assistant :{% endif %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer of words that puts `<s>` before a text, with a chat template."""
    model = Model(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    model.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    model.save(str(tmp_path / "tokenizer.json"))
    configure(tmp_path, chat_template=TURNS + START)
    return tmp_path


def configure(folder: Path, **config: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_a_text_is_counted_with_what_the_model_puts_before_it(folder: Path) -> None:
    by = make(str(folder), nothing)
    assert isinstance(by, FileTokenizer)
    assert counted(by, completion("one two three")) == 4
    assert counted(by, completion("one two", add_special_tokens=False)) == 2
    assert counted(by, completion(" ", add_special_tokens=False)) == 1  # never none


def test_a_chat_is_counted_as_the_template_writes_it(folder: Path) -> None:
    by = FileTokenizer(folder)
    assert counted(by, chat(USER)) == len(["user", ":", "one", "two", "assistant", ":"])
    assert counted(by, chat(USER, add_generation_prompt=False)) == 4
    assert counted(by, chat(USER, add_special_tokens=True)) == 7
    assert counted(by, chat(USER, {"role": "assistant", "content": "three"})) == 9


def test_a_template_of_its_own_file_goes_before_the_one_in_the_configuration(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("one")
    assert counted(FileTokenizer(folder), chat(USER)) == 1


def test_of_several_templates_the_default_one_is_taken(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "one two"}, {"name": "default", "template": "one"}]
    configure(folder, chat_template=named)
    assert counted(FileTokenizer(folder), chat(USER)) == 1


def test_a_template_gets_its_tokens_tools_documents_and_arguments(folder: Path) -> None:
    template = "{{ bos_token }} {{ eos_token }} {{ tools | length }} {{ documents | length }} {{ thinking }}"
    configure(folder, chat_template=template, bos_token={"content": "one"}, eos_token="two")
    by = FileTokenizer(folder)
    request = chat(USER, tools=[{}], documents=[{}, {}], chat_template_kwargs={"thinking": "three"})
    assert by._rendered(request.body) == "one two 1 2 three"
    assert counted(by, request) == 5


def test_json_in_a_template_is_written_as_it_is(folder: Path) -> None:
    """Not as for HTML, in which one sign takes six."""
    configure(folder, chat_template="{{ tools | tojson }}")
    request = chat(USER, tools=[{"name": "<ü> & 'x'"}])
    assert FileTokenizer(folder)._rendered(request.body) == '[{"name": "<ü> & \'x\'"}]'


def test_templates_may_break_out_of_loops_and_ask_for_the_date(folder: Path) -> None:
    configure(folder, chat_template="{% for m in messages %}{% break %}{% endfor %}{{ strftime_now('%Y') | length }}")
    assert FileTokenizer(folder)._rendered(chat(USER).body) == "4"


def test_a_content_in_parts_is_joined_unless_the_template_goes_through_parts(folder: Path) -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two three"}]}
    assert counted(FileTokenizer(folder), chat(parts)) == counted(
        FileTokenizer(folder), chat({"role": "user", "content": "one two three"})
    )
    configure(folder, chat_template="{% for part in messages[0]['content'] %}{{ part.text }} {% endfor %}")
    assert counted(FileTokenizer(folder), chat(parts)) == 3


@pytest.mark.parametrize(
    ("template", "more", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", {}, "roles must alternate"),
        ("{{ messages[7].content.upper() }}", {}, "no element 7"),
        ("{{ tools | length }}", {"tools": 5}, "object of type 'int' has no len()"),
        ("one", {"chat_template_kwargs": [1]}, "must be a mapping"),
        ("one", {"chat_template_kwargs": {"messages": []}}, "multiple values"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", {}, "unsafe"),
    ],
)
def test_messages_that_do_not_fit_the_template_are_the_clients_fault(
    folder: Path, template: str, more: dict[str, Any], said: str
) -> None:
    configure(folder, chat_template=template)
    with pytest.raises(Refused, match=r"^messages do not fit the chat template \(") as refused:
        counted(FileTokenizer(folder), chat(USER, **more))
    assert refused.value.status == 400 and refused.value.param == "messages"
    assert said in str(refused.value) and len(str(refused.value)) < 600


def test_a_model_without_a_template_takes_completions_alone(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    by = FileTokenizer(folder)
    assert counted(by, completion("one")) == 2
    with pytest.raises(Refused) as refused:
        counted(by, chat(USER))
    assert str(refused.value) == "the model's tokenizer has no chat template; use /v1/completions"


@pytest.mark.parametrize("content", [None, b"", b"{}", b"{", b"\xff"])
def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError) as refused:
        make(str(tmp_path), nothing)
    start = f"tokenizer is {tmp_path}; {tmp_path / 'tokenizer.json'} cannot be read ("
    assert str(refused.value).startswith(start)


@pytest.mark.parametrize(
    "config",
    [
        *(b"{", b"[1]", b"\xff", b"5", b'{"chat_template": "{% if %}"}', b'{"chat_template": 5}'),
        *(b'{"chat_template": [5]}', b'{"chat_template": [{"name": "default", "template": 5}]}'),
    ],
)
def test_a_template_that_cannot_be_read_is_refused(folder: Path, config: bytes) -> None:
    (folder / "tokenizer_config.json").write_bytes(config)
    with pytest.raises(ValueError, match="its chat template cannot be read"):
        FileTokenizer(folder)


# --- asking an engine -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def asking(count: int = 1) -> AsyncIterator[tuple[list[ScriptedEngine], Tokenizer]]:
    """Engines, and a tokenizer that asks them."""
    scripted = [ScriptedEngine() for _ in range(count)]
    for each in scripted:
        await each.listen(0)
    engines = [
        Engine.of("decode", f"decode/{k}", EngineEntry(url=each.url), faults=3, pause_s=1.0)
        for k, each in enumerate(scripted)
    ]
    try:
        yield scripted, make("engine", lambda: engines)
    finally:
        for engine in engines:
            await engine.client.close()
        for each in scripted:
            await each.kill()


def test_an_engine_is_asked_with_what_shapes_the_prompt_and_nothing_else() -> None:
    async def story() -> None:
        async with asking() as ((engine,), by):
            assert isinstance(by, EngineTokenizer)
            asked = {"model": "tiny", "messages": [USER], "tools": [], "add_generation_prompt": False}
            assert await by.count(chat(USER, **asked, temperature=0, max_tokens=3, stream=True)) == 2
            assert await by.count(completion("one two three", max_tokens=3)) == 3
            assert [path for path, _ in engine.asked] == ["/tokenize"] * 2
            assert [json.loads(body) for _, body in engine.asked] == [asked, {"prompt": "one two three"}]

    run(story())


@pytest.mark.parametrize("name", ["tokenize_text", "tokenize_chat"])
def test_the_count_of_vllm_0_32_is_read(name: str) -> None:
    async def story() -> None:
        async with asking() as ((engine,), by):
            answer = sample(name)
            engine.says["/tokenize"] = answer.status, answer.body
            assert await by.count(completion("any")) == orjson.loads(answer.body)["count"]

    run(story())


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, sample("error_too_long").body, "This model's maximum context length is 2048 tokens."),
        (422, b'{"detail": "messages are odd"}', "messages are odd"),
        (413, b"{}", "no reason given"),
        (400, b'{"error": {"message": "' + b"x" * 10_000 + b'"}}', "xxx"),
    ],
)
def test_a_prompt_that_an_engine_refuses_is_the_clients_fault(status: int, body: bytes, said: str) -> None:
    async def story() -> None:
        async with asking(2) as (engines, by):
            engines[0].says["/tokenize"] = status, body
            for request, param in ((completion("one"), "prompt"), (chat(USER), "messages")):
                with pytest.raises(Refused, match=r"^the prompt cannot be tokenized: ") as refused:
                    await by.count(request)
                assert said in str(refused.value) and len(str(refused.value)) < 600
                assert (refused.value.status, refused.value.param) == (400, param)
            assert engines[1].asked == []

    run(story())


BAD: list[Callable[[ScriptedEngine], Any]] = [
    lambda engine: engine.says.update({"/tokenize": (500, b'{"error": {"message": "dead"}}')}),
    lambda engine: engine.says.update({"/tokenize": (404, sample("error_unknown_path").body)}),
    lambda engine: engine.says.update({"/tokenize": (401, b'{"error": "Unauthorized"}')}),
    lambda engine: engine.says.update({"/tokenize": (429, b'{"error": {"message": "busy"}}')}),
    lambda engine: engine.says.update({"/tokenize": (200, b"<html>")}),
    lambda engine: engine.says.update({"/tokenize": (200, b"[5]")}),
    lambda engine: engine.says.update({"/tokenize": (200, b'{"count": "5"}')}),
    lambda engine: engine.says.update({"/tokenize": (200, b'{"count": true}')}),
    lambda engine: engine.says.update({"/tokenize": (200, b'{"tokens": []}')}),
    lambda engine: setattr(engine, "silent", True),
]


@pytest.mark.parametrize("spoil", BAD)
def test_another_engine_is_asked_when_one_fails(
    spoil: Callable[[ScriptedEngine], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "TIMEOUT_S", 0.2)

    async def story() -> None:
        async with asking(2) as (engines, by):
            spoil(engines[0])
            monkeypatch.setattr(tokenizer, "TIMEOUT_S", 0.2 if engines[0].silent else 30.0)
            assert await by.count(completion("one two three four")) == 4

    run(story())


def test_an_engine_that_has_gone_is_passed_over() -> None:
    async def story() -> None:
        async with asking(2) as (engines, by):
            await engines[0].kill()
            assert await by.count(completion("one two")) == 2

    run(story())


@pytest.mark.parametrize("count", [0, 1, 5])
def test_when_no_engine_can_count_the_client_may_come_again(count: int) -> None:
    async def story() -> None:
        async with asking(count) as (engines, by):
            for engine in engines:
                engine.says["/tokenize"] = 500, b"{}"
            with pytest.raises(Refused) as refused:
                await by.count(completion("one"))
            assert str(refused.value) == (
                "no engine can count the prompt's tokens; try again later, or send token ids"
            )
            assert (refused.value.status, refused.value.kind, refused.value.retry_after_s) == (
                503,
                "service_unavailable",
                1,
            )
            assert sum(len(engine.asked) for engine in engines) == min(count, 3)

    run(story())
