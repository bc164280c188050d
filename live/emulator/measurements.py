"""What an emulated engine counts, and how it tells it: vLLM's metrics, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from ...envs.cluster import EngineSpec
from ...envs.simulator.engine import Usage
from .clock import EngineClock
from .generation import Generation
from .options import Role

_LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_BETWEEN_TOKENS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5)
_TRANSFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_BYTES = tuple(float(2 ** (10 + i)) for i in range(1, 25, 2))

OUTCOMES = ("stop", "length", "abort", "error", "repetition")
"""The reasons of `request_success_total`."""

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class Histogram:
    """Counts of values by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class Measurements:
    """Counters and histograms of one engine. Times are wall seconds, as a client sees them.

    Args:
        spec: limits.
        role: decode engines tell of pulls.
        model: its name, a label of every metric.
        clock: engine time.
    """

    def __init__(self, spec: EngineSpec, role: Role, model: str, clock: EngineClock) -> None:
        self._spec = spec
        self._role = role
        self._clock = clock
        quoted = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        self._model_label = f'model_name="{quoted}"'
        self.preemptions = 0
        self.failed_transfers = 0
        self.expired = 0
        self.notifications_after_expiry = 0
        self._prompt_tokens = 0
        self._pulled_tokens = 0
        self._queried_tokens = 0
        self._output_tokens = 0
        self._outcomes = dict.fromkeys(OUTCOMES, 0)
        bounds = [bound for bound in _TOKENS if bound < spec.max_model_len]
        self._histograms = {
            "request_prompt_tokens": Histogram(bounds),
            "request_generation_tokens": Histogram(bounds),
            "request_params_max_tokens": Histogram(bounds),
            "time_to_first_token_seconds": Histogram(_FIRST_TOKEN),
            "inter_token_latency_seconds": Histogram(_BETWEEN_TOKENS),
            "request_time_per_output_token_seconds": Histogram(_BETWEEN_TOKENS),
            "e2e_request_latency_seconds": Histogram(_LATENCY),
            "request_queue_time_seconds": Histogram(_LATENCY),
            "request_inference_time_seconds": Histogram(_LATENCY),
            "request_prefill_time_seconds": Histogram(_LATENCY),
            "request_decode_time_seconds": Histogram(_LATENCY),
        }
        self._transfers = {
            "nixl_xfer_time_seconds": Histogram(_TRANSFER),
            "nixl_bytes_transferred": Histogram(_BYTES),
        }

    # --- what happened --------------------------------------------------------------------------------

    def first_token(self, generation: Generation) -> None:
        """The first token of a request is out, and with it its prompt is done."""
        self._prompt_tokens += generation.prompt_tokens
        self._queried_tokens += generation.prompt_tokens
        self._pulled_tokens += generation.prompt_tokens if generation.remote is not None else 0
        self._observe("time_to_first_token_seconds", generation.first - generation.submitted)

    def tokens(self, generation: Generation, count: int, time: int) -> None:
        """Tokens of a request are out, the last one at `time` (ps)."""
        self._output_tokens += count
        last, gaps = generation.last, count
        if last < 0:
            last, gaps = generation.first, count - 1
        if gaps:
            self._observe("inter_token_latency_seconds", (time - last) // gaps, gaps)
        generation.last = time

    def finished(self, generation: Generation, time: int) -> None:
        """All tokens of a request are out at `time`, ps."""
        if self._role == "prefill":
            self.first_token(generation)
            self._output_tokens += 1
        self._outcomes[generation.reason] += 1
        count = len(generation.tokens)
        self._histograms["request_prompt_tokens"].observe(generation.prompt_tokens)
        self._histograms["request_generation_tokens"].observe(count)
        self._histograms["request_params_max_tokens"].observe(generation.most)
        self._observe("e2e_request_latency_seconds", time - generation.submitted)
        self._observe("request_queue_time_seconds", generation.joined - generation.submitted)
        self._observe("request_inference_time_seconds", time - generation.joined)
        self._observe("request_prefill_time_seconds", generation.first - generation.joined)
        self._observe("request_decode_time_seconds", time - generation.first)
        if count > 1:
            self._observe("request_time_per_output_token_seconds", (time - generation.first) // (count - 1))

    def aborted(self, generation: Generation) -> None:
        """A request ended before its time."""
        self._outcomes[generation.outcome] += 1

    def transfer(self, seconds: float, blocks: int, block_bytes: int) -> None:
        """KV was pulled."""
        self._transfers["nixl_xfer_time_seconds"].observe(seconds)
        self._transfers["nixl_bytes_transferred"].observe(blocks * block_bytes)

    def _observe(self, name: str, span: int, times: int = 1) -> None:
        self._histograms[name].observe(self._clock.wall_seconds(span), times)

    # --- how it is told -------------------------------------------------------------------------------

    def text(self, usage: Usage, in_transit: int, *, old_names: bool = False) -> str:
        """All metrics.

        Args:
            usage: what the engine reports of itself now.
            in_transit: how many of its waiting requests wait for their KV.
            old_names: the usage of the KV cache is named as in old versions.
        """
        share = usage.used / self._spec.num_blocks
        lines: list[str] = []
        waiting = {"capacity": usage.waiting - in_transit, "deferred": in_transit}
        self._gauge(lines, "num_requests_running", [("", usage.running)])
        self._gauge(lines, "num_requests_waiting", [("", usage.waiting)])
        self._gauge(lines, "num_requests_waiting_by_reason", [(f'reason="{k}"', n) for k, n in waiting.items()])
        states = (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0))
        self._gauge(lines, "engine_sleep_state", [(f'sleep_state="{state}"', on) for state, on in states])
        self._gauge(lines, "gpu_cache_usage_perc" if old_names else "kv_cache_usage_perc", [("", share)])
        for name, count in (
            ("prefix_cache_queries", self._queried_tokens),
            ("prefix_cache_hits", 0),
            ("external_prefix_cache_queries", self._queried_tokens),
            ("external_prefix_cache_hits", self._pulled_tokens),
            ("num_preemptions", self.preemptions),
            ("prompt_tokens", self._prompt_tokens),
            ("generation_tokens", self._output_tokens),
        ):
            self._counter(lines, name, [("", count)])
        outcomes = [(f'finished_reason="{reason}"', count) for reason, count in self._outcomes.items()]
        self._counter(lines, "request_success", outcomes)
        histograms = dict(self._histograms)
        if self._role != "mixed":
            histograms |= self._transfers
            self._counter(lines, "nixl_num_failed_transfers", [("", self.failed_transfers)])
            self._counter(lines, "nixl_num_failed_notifications", [("", 0)])
            self._counter(lines, "nixl_num_kv_expired_reqs", [("", self.expired)])
            self._counter(lines, "nixl_num_notifications_after_expiry", [("", self.notifications_after_expiry)])
        for name, histogram in histograms.items():
            self._histogram(lines, name, histogram)
        lines += self._configuration()
        return "\n".join(lines) + "\n"

    def _configuration(self) -> Iterable[str]:
        spec = self._spec
        known = {
            "block_size": spec.block_size,
            "cache_dtype": "auto",
            "enable_prefix_caching": False,
            "engine": 0,
            "kv_cache_size_tokens": spec.num_blocks * spec.block_size,
            "num_gpu_blocks": spec.num_blocks + 1,  # block 0 is never used
        }
        labels = ",".join(f'{name}="{value}"' for name, value in known.items())
        return ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{labels}}} 1.0"]

    def _labels(self, more: str) -> str:
        """The labels of a metric, in the order of their names as vLLM has them."""
        before = more and more < self._model_label
        parts = ['engine="0"', more if before else "", self._model_label, "" if before else more]
        return ",".join(part for part in parts if part)

    def _gauge(self, lines: list[str], name: str, values: Iterable[tuple[str, float]]) -> None:
        lines.append(f"# TYPE vllm:{name} gauge")
        lines += [f"vllm:{name}{{{self._labels(more)}}} {float(value)}" for more, value in values]

    def _counter(self, lines: list[str], name: str, values: Iterable[tuple[str, int]]) -> None:
        lines.append(f"# TYPE vllm:{name}_total counter")
        lines += [f"vllm:{name}_total{{{self._labels(more)}}} {float(value)}" for more, value in values]

    def _histogram(self, lines: list[str], name: str, histogram: Histogram) -> None:
        lines.append(f"# TYPE vllm:{name} histogram")
        total = 0
        for bound, count in zip([*histogram.bounds, "+Inf"], histogram.counts, strict=True):
            total += count
            bounded = self._labels(f'le="{bound}"')
            lines.append(f"vllm:{name}_bucket{{{bounded}}} {float(total)}")
        lines.append(f"vllm:{name}_count{{{self._labels('')}}} {float(total)}")
        lines.append(f"vllm:{name}_sum{{{self._labels('')}}} {histogram.sum}")
