"""The router's own metrics, for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ..envs.cluster import PS_PER_S
from ..envs.trace import SLO_CLASSES
from .request import Status

if TYPE_CHECKING:
    from .service import Service
    from .story import Story

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
DECISION_SECONDS = (5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 1e-1)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Histogram:
    """Counts of values by bucket; adding to it is cheap, for it happens with every request."""

    __slots__ = ("_counts", "_edges", "_sum")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self._edges, self._counts, self._sum = edges, [0] * (len(edges) + 1), 0.0

    def observe(self, value: float) -> None:
        """Another value."""
        self._counts[bisect_left(self._edges, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: tuple[str, ...]) -> None:
        """Adds what was counted to a family of metrics."""
        names = [*map(floatToGoString, self._edges), "+Inf"]
        family.add_metric(labels, list(zip(names, accumulate(self._counts), strict=True)), self._sum)


class RouterMetrics:
    """Counters and histograms of what was routed, and gauges that are read when somebody asks."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._requests = {(status, slo): 0 for status in get_args(Status) for slo in range(len(SLO_CLASSES))}
        self._met = [0] * len(SLO_CLASSES)
        self._assigned: defaultdict[str, int] = defaultdict(int)
        self._refused: defaultdict[int, int] = defaultdict(int)
        self._fallbacks: defaultdict[str, int] = defaultdict(int)
        self._shadow: defaultdict[str, int] = defaultdict(int)
        self._retries = self._again = self._prompt_tokens = self._output_tokens = 0
        self._ttft, self._tpot, self._e2e = ([_Histogram(SECONDS) for _ in SLO_CLASSES] for _ in range(3))
        self._decision = _Histogram(DECISION_SECONDS)
        self.registry = CollectorRegistry()
        self.registry.register(_Counted(self))
        self.registry.register(_State(service))

    def refused(self, status: int) -> None:
        """A client was answered by an error of the router's own."""
        self._refused[status] += 1

    def ended(self, story: Story) -> None:
        """A request has ended."""
        request, decision, slo = story.request, story.decision, story.request.slo
        self._requests[story.status, slo] += 1
        if decision is not None:
            self._decision.observe(decision.seconds)
            if decision.fallback_reason:
                self._fallbacks[decision.fallback_reason] += 1
            if decision.shadow is not None:
                same = tuple(decision.shadow) == (decision.prefill, decision.decode)
                self._shadow[str(same).lower()] += 1
            for name in (story.prefill, story.decode):
                if name is not None:
                    self._assigned[name] += 1
        if story.attempts > 1:
            self._retries += story.attempts - 1
        self._again += story.prefill_again
        if story.status != "finished":
            return
        self._prompt_tokens += request.prompt
        self._output_tokens += max(story.generated, 0)
        self._e2e[slo].observe((story.end - request.arrival) / PS_PER_S)
        if story.first_token >= 0:
            first = story.first_token - request.arrival
            per_token = (story.last_token - story.first_token) / max(story.generated - 1, 1)
            self._ttft[slo].observe(first / PS_PER_S)
            self._tpot[slo].observe(per_token / PS_PER_S)
            router = self._service.router
            ttft, tpot = router.targets_of(slo, request.ttft_target_s, request.tpot_target_s)
            if first <= ttft and per_token <= tpot:
                self._met[slo] += 1

    def counted(self) -> Iterator[Metric]:
        """What was counted so far."""
        requests = CounterMetricFamily(
            "disaggroute_requests", "Requests that have ended, by how and by SLO class.", labels=("status", "slo")
        )
        for (status, slo), count in self._requests.items():
            requests.add_metric((status, SLO_CLASSES[slo]), count)
        yield requests
        met = dict(zip(SLO_CLASSES, self._met, strict=True))
        tokens = {"prompt": self._prompt_tokens, "output": self._output_tokens}
        refused = {str(status): count for status, count in self._refused.items()}
        for name, text, label, counts in (
            ("slo_met", "Streamed requests that finished within both targets, by SLO class.", "slo", met),
            ("refused", "Clients answered by an error of the router's own, by status.", "status", refused),
            ("assigned", "Requests assigned to an engine.", "engine", self._assigned),
            (
                "policy_fallbacks",
                "Decisions made by least-loaded in place of the policy, by reason.",
                "reason",
                self._fallbacks,
            ),
            ("shadow_decisions", "Decisions of the shadow policy.", "same", self._shadow),
            ("tokens", "Tokens of finished requests.", "kind", tokens),
        ):
            family = CounterMetricFamily(f"disaggroute_{name}", text, labels=(label,))
            for value, count in counts.items():
                family.add_metric((value,), count)
            yield family
        yield CounterMetricFamily("disaggroute_retries", "Attempts after the first.", value=self._retries)
        again = "Requests that were prefilled again because too long passed between the legs."
        yield CounterMetricFamily("disaggroute_prefill_again", again, value=self._again)
        for kind, text, by_class in (
            ("ttft", "Time from arrival to the first token (streamed requests).", self._ttft),
            ("tpot", "Mean time per token after the first (streamed requests).", self._tpot),
            ("e2e", "Time from arrival to the end.", self._e2e),
        ):
            times = HistogramMetricFamily(f"disaggroute_{kind}_seconds", text, labels=("slo",))
            for name, histogram in zip(SLO_CLASSES, by_class, strict=True):
                histogram.add_to(times, (name,))
            yield times
        decisions = HistogramMetricFamily("disaggroute_decision_seconds", "Time that a decision took.", labels=())
        self._decision.add_to(decisions, ())
        yield decisions

    def text(self) -> bytes:
        """Prometheus exposition."""
        return generate_latest(self.registry)


class _Counted(Collector):
    """What was counted, at the moment somebody asks."""

    def __init__(self, metrics: RouterMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """All of it."""
        return self._metrics.counted()


class _State(Collector):
    """What is so at the moment somebody asks."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> list[Metric]:
        """None: they need a service that runs."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        service = self._service
        yield GaugeMetricFamily("disaggroute_in_flight", "Requests in flight.", value=service.in_flight)
        lines = GaugeMetricFamily("disaggroute_records_waiting", "Records that are not on the disk yet.")
        lines.add_metric([], service.records.waiting)
        yield lines
        yield CounterMetricFamily("disaggroute_records_lost", "Records given up.", value=service.records.lost)
        both = ("engine", "role")
        gauges = {
            "up": "1: requests may be sent to the engine.",
            "legs": "Legs in flight.",
            "connections": "Open connections.",
            "poll_age_seconds": "Time since its last poll.",
            "kv_usage": "Part of its KV blocks in use, polled.",
            "running": "Running requests, polled.",
            "waiting": "Waiting requests, polled.",
        }
        families = {
            name: GaugeMetricFamily(f"disaggroute_engine_{name}", text, labels=both)
            for name, text in gauges.items()
        }
        ejected = CounterMetricFamily("disaggroute_engine_ejections", "Ejections.", labels=both)
        opened = CounterMetricFamily("disaggroute_engine_breaker_opened", "Breaker openings.", labels=both)
        now = service.clock.now()
        for engine in service.engines:
            labels = [engine.name, engine.role]
            open_now = engine.health == "up" and not engine.draining and engine.breaker.state != "open"
            families["up"].add_metric(labels, float(open_now))
            families["legs"].add_metric(labels, engine.legs)
            families["connections"].add_metric(labels, engine.client.connections)
            if engine.polled_at >= 0:
                families["poll_age_seconds"].add_metric(labels, (now - engine.polled_at) / PS_PER_S)
            if engine.poll is not None:
                families["kv_usage"].add_metric(labels, engine.poll.usage)
                families["running"].add_metric(labels, engine.poll.running)
                families["waiting"].add_metric(labels, engine.poll.waiting)
            ejected.add_metric(labels, engine.ejections)
            opened.add_metric(labels, engine.breaker.opened)
        yield from families.values()
        yield ejected
        yield opened
