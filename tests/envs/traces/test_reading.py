from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from disaggroute.envs import traces
from disaggroute.envs.cluster import PS_PER_S

SAMPLES = {
    "AzureLLMInferenceTrace_conv_head200.csv": ("azure", 199, (374, 44)),
    "BurstGPT_1_head33.csv": ("burstgpt", 32, (472, 18)),
    "mooncake_conversation_head50.jsonl": ("mooncake", 50, (6758, 500)),
    "qwen_bailian_README_example_hash_ids_truncated.jsonl": ("bailian", 1, (521, 132)),
    "splitwise_test_trace.csv": ("splitwise-sim", 3, (4096, 32)),
    "vidur_splitwise_conv_head100.csv": ("vidur", 99, (374, 44)),
}

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
)
MOONCAKE = '{"timestamp": %d, "input_length": 10, "output_length": 5, "hash_ids": [%s]}\n'


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("told", [False, True])
def test_samples_of_the_real_formats_are_read(shared_data: Path, name: str, told: bool) -> None:
    kind, requests, first = SAMPLES[name]
    file = traces.read(shared_data / "formats" / name, kind if told else None)
    assert (file.format, len(file)) == (kind, requests)
    assert (file.prompt[0], file.output[0]) == first
    assert file.arrival[0] == 0
    assert (np.diff(file.arrival) >= 0).all()


@pytest.mark.parametrize(("name", "requests"), [("azure2023_conv", 19_366), ("azure2023_code", 8_819)])
def test_whole_azure_traces_are_read(shared_data: Path, name: str, requests: int) -> None:
    file = traces.read(shared_data / "traces" / f"{name}.csv.gz")
    assert len(file) == requests
    assert file.name == name
    assert traces.read(shared_data / "traces" / f"{name}.csv.gz", "azure").format == "azure"


def test_the_original_azure_file_and_its_conversion_agree(shared_data: Path) -> None:
    original = traces.read(shared_data / "formats" / "AzureLLMInferenceTrace_conv_head200.csv")
    converted = traces.read(shared_data / "traces" / "azure2023_conv.csv.gz")
    assert (original.prompt == converted.prompt[:199]).all()
    assert np.abs(original.arrival - converted.arrival[:199]).max() <= PS_PER_S // 10**6


def test_the_whole_mooncake_trace_keeps_its_prefixes(shared_data: Path) -> None:
    file = traces.read(shared_data / "traces" / "mooncake_conversation.jsonl.gz")
    assert (len(file), file.oddities.duplicates, file.prefix_tokens) == (12_031, 10_851, 512)
    assert file.prefix_offsets is not None
    assert file.prefix_ids is not None
    assert file.prefix_ids[: file.prefix_offsets[1]].tolist() == list(range(14))
    blocks = -(-file.prompt // 512)
    assert (np.diff(file.prefix_offsets) == blocks).mean() > 0.99


def test_azure_times_are_read_to_the_hundred_nanoseconds(tmp_path: Path) -> None:
    file = traces.read(put(tmp_path / "a.csv", AZURE))
    assert file.arrival.tolist() == [0, 4_314_579_000_000]


def test_a_time_zone_of_utc_is_read(tmp_path: Path) -> None:
    rows = "2024-05-10 00:00:00.009930+00:00,1,1\n2024-05-10 00:00:01Z,1,1\n"
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows
    assert traces.read(put(tmp_path / "a.csv", text)).arrival.tolist() == [0, 990_070_000_000]


def test_mooncake_counts_in_milliseconds_and_bailian_in_seconds(tmp_path: Path) -> None:
    mooncake = traces.read(put(tmp_path / "m.jsonl", MOONCAKE % (0, "1") + MOONCAKE % (1500, "1, 2")))
    assert mooncake.arrival.tolist() == [0, 1_500_000_000_000]
    line = '{"chat_id": 1, "timestamp": %s, "input_length": 1, "output_length": 1, "type": "%s"}\n'
    bailian = traces.read(put(tmp_path / "b.jsonl", line % ("61.114", "text") + line % ("62.614", "search")))
    assert bailian.arrival.tolist() == [0, 1_500_000_000_000]
    assert bailian.families == ("text", "search")
    assert bailian.family.tolist() == [0, 1]


def test_columns_may_stand_in_any_order_among_others(tmp_path: Path) -> None:
    file = traces.read(
        put(tmp_path / "v.csv", "x,num_decode_tokens,arrived_at,num_prefill_tokens\nq,3,0.5,7\n")
    )
    assert (file.prompt[0], file.output[0]) == (7, 3)


def test_a_gzip_file_is_read_like_a_plain_one(tmp_path: Path) -> None:
    plain = traces.read(put(tmp_path / "a.csv", AZURE))
    packed = traces.read(put(tmp_path / "a.csv.gz", gzip.compress(AZURE.encode())))
    assert (plain.arrival == packed.arrival).all()


def test_rows_without_tokens_are_dropped_and_counted(tmp_path: Path) -> None:
    text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    text += "5,ChatGPT,0,0,0,API log\n6,GPT-4,10,0,10,API log\n7,ChatGPT,472,18,490,Conversation log\n"
    file = traces.read(put(tmp_path / "b.csv", text))
    assert (len(file), file.oddities.rows, file.oddities.failed) == (1, 3, 2)
    assert file.families == ("Conversation log",)


def test_oddities_are_accepted_and_counted(tmp_path: Path) -> None:
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n1,5,5\n1,5,5\n\n2,5,5\n2,5,5\n2,5,5\n\n"
    odd = traces.read(put(tmp_path / "v.csv", b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())).oddities
    assert (odd.rows, odd.duplicates, odd.blank, odd.byte_order_mark, odd.crlf) == (5, 3, 2, True, 8)
    plain = traces.read(put(tmp_path / "w.csv", text.replace("\n\n", "\n"))).oddities
    assert (plain.blank, plain.byte_order_mark, plain.crlf) == (0, False, 0)


def test_a_last_line_without_an_end_is_read(tmp_path: Path) -> None:
    assert len(traces.read(put(tmp_path / "a.csv", AZURE.rstrip("\n")))) == 2
    assert len(traces.read(put(tmp_path / "m.jsonl", (MOONCAKE % (0, "1")).rstrip("\n")))) == 1


def test_unsorted_rows_are_sorted_on_demand(tmp_path: Path) -> None:
    path = put(
        tmp_path / "m.jsonl", MOONCAKE % (3000, "7") + MOONCAKE % (0, "1, 2") + MOONCAKE % (3000, "8, 9")
    )
    file = traces.read(path, sort=True)
    assert file.oddities.unsorted == 1
    assert file.arrival.tolist() == [0, 3 * PS_PER_S, 3 * PS_PER_S]
    assert file.prefix_ids is not None
    assert file.prefix_ids.tolist() == [1, 2, 7, 8, 9]


def test_our_own_columns_may_give_classes_and_families(tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens,slo,family\n1.5,10,5,loose,chat\n2.5,10,5,tight,code\n"
    file = traces.read(put(tmp_path / "t.csv", text))
    assert file.format == "disaggroute"
    assert file.arrival.tolist() == [1_500_000_000_000, 2_500_000_000_000]
    assert file.slo is not None
    assert file.slo.tolist() == [1, 0]
    assert file.families == ("chat", "code")
