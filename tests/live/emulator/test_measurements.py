"""Metrics have the names, the labels and the sense that vLLM gives them."""

from __future__ import annotations

import asyncio
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from disaggroute.live.emulator.measurements import Histogram

from .engines import Client, options, prefill, run, serving, two_legs, until

GAUGES = {"num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc"}
COUNTERS = {
    "prefix_cache_queries_total", "prefix_cache_hits_total", "external_prefix_cache_queries_total",
    "external_prefix_cache_hits_total", "num_preemptions_total", "prompt_tokens_total", "generation_tokens_total",
    "request_success_total", "nixl_num_failed_transfers_total", "nixl_num_failed_notifications_total",
    "nixl_num_kv_expired_reqs_total", "nixl_num_notifications_after_expiry_total",
}  # fmt: skip
HISTOGRAMS = {
    "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
    "request_generation_tokens", "request_params_max_tokens", "nixl_xfer_time_seconds", "nixl_bytes_transferred",
}  # fmt: skip


async def text_of(client: Client) -> str:
    async with client.session.get(client.url + "/metrics") as response:
        assert response.headers["content-type"].startswith("text/plain; version=1.0.0")
        return await response.text()


def test_the_metrics_are_prometheus_text_with_vllms_names_and_labels() -> None:
    async def work() -> None:
        async with serving(options("decode", model='a "quoted" model')) as (_, (client,)):
            text = await text_of(client)
        samples = {s.name: s for family in text_string_to_metric_families(text) for s in family.samples}
        ours = {name.removeprefix("vllm:") for name in samples if name.startswith("vllm:")}
        assert ours >= GAUGES | COUNTERS | {f"{name}_sum" for name in HISTOGRAMS}
        labels = samples["vllm:num_requests_running"].labels
        assert labels == {"engine": "0", "model_name": 'a "quoted" model'}
        configuration = samples["vllm:cache_config_info"].labels
        assert (configuration["block_size"], configuration["num_gpu_blocks"]) == ("16", "3751")

    run(work())


def test_the_gauges_say_what_the_engine_holds() -> None:
    async def work() -> None:
        given = options("mixed", overrides={"max_num_seqs": 2}, time_scale=1.0)
        async with serving(given) as (_, (client,)):
            tasks = [asyncio.create_task(client.complete("x" * 100, 2000)) for _ in range(5)]

            async def running() -> bool:
                return await client.metric("num_requests_running") == 2

            await until(running)
            metrics = await client.metrics()
            assert metrics["vllm:num_requests_waiting"] == 3
            assert metrics['vllm:num_requests_waiting_by_reason{reason="capacity"}'] == 3
            assert metrics["vllm:kv_cache_usage_perc"] >= 14 / 3750
            for task in tasks:
                task.cancel()

    run(work())


def test_the_counters_and_histograms_count_what_was_served() -> None:
    async def work() -> None:
        async with serving(options("prefill"), options("decode")) as (_, (first, second)):
            await two_legs(first, second, "x" * 40, 11, stream=True)
            await two_legs(first, second, "x" * 20, 5)
            await prefill(first, "x" * 10)
            before, after = await first.metrics(), await second.metrics()
        assert (before["vllm:prompt_tokens_total"], before["vllm:generation_tokens_total"]) == (70, 3)
        assert (after["vllm:prompt_tokens_total"], after["vllm:generation_tokens_total"]) == (60, 16)
        assert after["vllm:external_prefix_cache_hits_total"] == 60
        assert after['vllm:request_success_total{finished_reason="length"}'] == 2
        assert after["vllm:inter_token_latency_seconds_count"] == 14
        decoded = after["vllm:request_decode_time_seconds_sum"]
        assert after["vllm:inter_token_latency_seconds_sum"] == pytest.approx(decoded, rel=1e-9)
        assert after["vllm:request_generation_tokens_sum"] == 16
        assert after["vllm:nixl_bytes_transferred_sum"] == 5 * 16 * 36_864
        assert before["vllm:time_to_first_token_seconds_count"] == 3
        assert 0 < after["vllm:time_to_first_token_seconds_sum"] < after["vllm:e2e_request_latency_seconds_sum"]

    run(work())


def test_an_old_engine_names_the_usage_of_its_cache_otherwise() -> None:
    async def work() -> None:
        async with serving(options("mixed")) as (_, (client,)):
            await client.fault("old_metric_names")
            names = set(re.findall(r"vllm:(\w+cache_usage\w+)\{", await text_of(client)))
            assert names == {"gpu_cache_usage_perc"}

    run(work())


def test_a_value_at_a_bound_counts_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    histogram.observe(2.0, times=3)
    assert (histogram.counts, histogram.sum) == ([2, 4, 1], 18.0)
