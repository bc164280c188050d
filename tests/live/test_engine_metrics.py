"""What an engine reports: read by name whatever stands around it, and never a zero that nobody has measured."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.live.engine_metrics import USAGE, MissingMetric, Reported, cache_size, reported, values

from .samples import metrics

LABELS = 'engine="0",model_name="tiny"'


def exported(usage: str = "0.25", running: str = "3.0", waiting: str = "2.0", labels: str = LABELS) -> bytes:
    return (
        f"# HELP vllm:kv_cache_usage_perc KV-cache usage. vllm:num_requests_running 9\n"
        f"vllm:kv_cache_usage_perc{{{labels}}} {usage}\n"
        f"vllm:num_requests_running{{{labels}}} {running}\n"
        f"vllm:num_requests_waiting{{{labels}}} {waiting}\n"
    ).encode()


CONFIG = b'vllm:cache_config_info{_block_size_resolved="True",block_size="16",engine="0",num_gpu_blocks="101"} 1.0\n'


# --- real engines ---------------------------------------------------------------------------------------------------


def test_what_vllm_0_32_exports_is_read() -> None:
    # 11 of 128 blocks wait for their decode leg; nothing runs.
    assert reported(metrics("prefill")) == Reported(11 / 128, 0, 0)
    assert reported(metrics("decode")) == Reported(0.0, 0, 0)
    assert cache_size(metrics("prefill")) == cache_size(metrics("decode")) == (32, 128)


@pytest.mark.parametrize(
    "name", ["vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting"]
)
def test_a_real_engine_that_loses_a_metric_has_it_named(name: str) -> None:
    """What begins like it (`num_requests_waiting_by_reason`) or speaks of it stays and is not taken for it."""
    lines = metrics("decode").splitlines(keepends=True)
    text = b"".join(line for line in lines if not line.startswith(f"{name}{{".encode()))
    assert len(text) < len(metrics("decode")) and name.encode() in text
    with pytest.raises(MissingMetric, match=rf"^there is no {name}( or |$)"):
        reported(text)


# --- names ----------------------------------------------------------------------------------------------------------


def test_the_name_of_the_usage_before_vllm_0_10_is_read() -> None:
    assert reported(exported().replace(b"vllm:kv_cache", b"vllm:gpu_cache")).usage == 0.25


def test_the_new_name_of_the_usage_goes_before_the_old_one() -> None:
    assert reported(b"vllm:gpu_cache_usage_perc 0.9\n" + exported()).usage == 0.25


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            b"vllm:kv_cache_usage_perc",
            "there is no vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc",
        ),
        (b"vllm:num_requests_running", "there is no vllm:num_requests_running"),
        (b"vllm:num_requests_waiting", "there is no vllm:num_requests_waiting"),
    ],
)
@pytest.mark.parametrize("other", [b"sglang:x", b"my_vllm:num_requests_waiting", b"vllm:num_requests_waiting_total"])
def test_a_missing_metric_is_named_and_nothing_like_it_is_taken(name: bytes, sentence: str, other: bytes) -> None:
    text = exported().replace(b"\n" + name, b"\n" + (other if other[:3] != b"my_" else b"my_" + name))
    with pytest.raises(MissingMetric) as missing:
        reported(text)
    assert str(missing.value) == sentence


@pytest.mark.parametrize("text", [b"", b"\n", b"<html>not found</html>", b"\xff\x00" * 100])
def test_something_else_than_metrics_is_refused(text: bytes) -> None:
    with pytest.raises(MissingMetric):
        reported(text)
    with pytest.raises(MissingMetric, match=r"^there is no vllm:cache_config_info$"):
        cache_size(text)


# --- forms of a line ------------------------------------------------------------------------------------------------


@given(st.permutations(['engine="0"', 'model_name="a b} 7 {c"', 'path="\\"quoted\\" \\\\"', 'u="ü,x=1"']))
def test_the_order_and_the_text_of_labels_change_nothing(labels: list[str]) -> None:
    assert reported(exported(labels=",".join(labels))) == Reported(0.25, 3, 2)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b" 1796007970123\n", b"  \n"])
def test_times_behind_values_and_other_line_ends_change_nothing(end: bytes) -> None:
    assert reported(exported().replace(b"\n", end)) == Reported(0.25, 3, 2)


def test_a_metric_without_labels_and_a_last_line_without_an_end_are_read() -> None:
    text = b"vllm:kv_cache_usage_perc\t5e-1\nvllm:num_requests_waiting 0\nvllm:num_requests_running 1.0"
    assert reported(text) == Reported(0.5, 1, 0)


def test_several_engines_behind_one_server_are_taken_together() -> None:
    first = exported(usage="0.2", running="3", waiting="1", labels='engine="0"')
    second = exported(usage="0.6", running="4", waiting="0", labels='engine="1"')
    assert reported(first + second) == Reported(pytest.approx(0.4), 7, 1)
    assert reported(second + first) == Reported(pytest.approx(0.4), 7, 1)


def test_several_engines_each_state_the_blocks_of_all() -> None:
    assert cache_size(CONFIG + CONFIG.replace(b'engine="0"', b'engine="1"')) == (16, 100)


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "many", "", "0x1", "1e300"])
@pytest.mark.parametrize("field", ["usage", "running", "waiting"])
def test_a_value_that_cannot_be_counted_with_is_refused_by_name(field: str, value: str) -> None:
    with pytest.raises(MissingMetric, match=r"^vllm:\w+ is no number from 0 to 1(e\+09)?: b'vllm:") as missing:
        reported(exported(**{field: value}))
    assert field in str(missing.value).split()[0]


def test_a_usage_in_percent_is_refused() -> None:
    with pytest.raises(MissingMetric, match="kv_cache_usage_perc is no number from 0 to 1: "):
        reported(exported(usage="37.5"))
    assert reported(exported(usage="1.0")).usage == 1.0


def test_one_bad_value_of_several_engines_is_refused() -> None:
    with pytest.raises(MissingMetric, match="kv_cache_usage_perc is no number"):
        reported(exported() + exported(usage="NaN", labels='engine="1"'))


@pytest.mark.parametrize("value", ["", "None", "-1", "0", "16.0", "9" * 5_000])
@pytest.mark.parametrize("label", ["block_size", "num_gpu_blocks"])
def test_a_cache_of_no_size_is_refused_by_its_label(label: str, value: str) -> None:
    usual = "16" if label == "block_size" else "101"
    text = CONFIG.replace(f',{label}="{usual}"'.encode(), f',{label}="{value}"'.encode())
    assert text != CONFIG
    with pytest.raises(MissingMetric, match=rf"^vllm:cache_config_info has no number in its label {label}$"):
        cache_size(text)


def test_a_label_that_is_not_there_is_refused_though_others_end_like_it() -> None:
    text = CONFIG.replace(b',block_size="16"', b',mamba_block_size="16"')
    with pytest.raises(MissingMetric, match="has no number in its label block_size"):
        cache_size(text)


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_the_three_lines_are_found_in_tens_of_thousands_of_others() -> None:
    draw = random.Random(0)
    others = [
        f'vllm:num_requests_waiting_by_reason{{engine="0",reason="{draw.random()}"}} {draw.random()}\n'.encode()
        for _ in range(30_000)
    ]
    ours = exported().splitlines(keepends=True)
    text = b"".join([*others[:20_000], *ours[:2], *others[20_000:], *ours[2:]])
    assert reported(text) == Reported(0.25, 3, 2)


@given(st.binary(max_size=200))
def test_whatever_an_engine_exports_is_read_or_refused(noise: bytes) -> None:
    for text in (noise, b"vllm:kv_cache_usage_perc" + noise, CONFIG[:40] + noise):
        for read in (lambda text: values(text, USAGE), reported, cache_size):
            try:
                read(text)
            except MissingMetric as missing:
                assert len(str(missing)) < 200
