"""The router's own metrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..envs.cluster import PS_PER_S
from ..envs.trace import SLO_CLASSES

if TYPE_CHECKING:
    from .relay import Story
    from .service import Service

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
DECISION_SECONDS = (5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 1e-1)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class RouterMetrics:
    """Counters and histograms of what was routed, and gauges that are read when somebody asks."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "disaggroute_requests",
            "Requests that have ended, by how and by SLO class.",
            ("status", "slo"),
            registry=self.registry,
        )
        self._met = Counter(
            "disaggroute_slo_met",
            "Streamed requests that finished within both targets, by SLO class.",
            ("slo",),
            registry=self.registry,
        )
        self._assigned = Counter(
            "disaggroute_assigned", "Requests assigned to an engine.", ("engine",), registry=self.registry
        )
        self._fallbacks = Counter(
            "disaggroute_policy_fallbacks",
            "Decisions made by least-loaded in place of the policy, by reason.",
            ("reason",),
            registry=self.registry,
        )
        self._shadow = Counter(
            "disaggroute_shadow_decisions", "Decisions of the shadow policy.", ("same",), registry=self.registry
        )
        self._retries = Counter("disaggroute_retries", "Attempts after the first.", registry=self.registry)
        self._again = Counter(
            "disaggroute_prefill_again",
            "Requests that were prefilled again because too long passed between the legs.",
            registry=self.registry,
        )
        self._tokens = Counter(
            "disaggroute_tokens", "Tokens of finished requests.", ("kind",), registry=self.registry
        )
        times = {
            "ttft": "Time from arrival to the first token (streamed requests).",
            "tpot": "Mean time per token after the first (streamed requests).",
            "e2e": "Time from arrival to the end.",
        }
        self._times = {
            kind: Histogram(f"disaggroute_{kind}_seconds", text, ("slo",), buckets=SECONDS, registry=self.registry)
            for kind, text in times.items()
        }
        self._decision = Histogram(
            "disaggroute_decision_seconds",
            "Time that a decision took.",
            buckets=DECISION_SECONDS,
            registry=self.registry,
        )
        # Looked up once: that costs more than counting.
        self._by_end = {
            (status, slo): self._requests.labels(status, slo)
            for status in ("finished", "failed", "rejected", "cancelled")
            for slo in SLO_CLASSES
        }
        self._by_class = [
            (self._times["ttft"].labels(slo), self._times["tpot"].labels(slo), self._times["e2e"].labels(slo))
            for slo in SLO_CLASSES
        ]
        self._targets_met = [self._met.labels(slo) for slo in SLO_CLASSES]
        self._of_tokens = self._tokens.labels("prompt"), self._tokens.labels("output")
        self.registry.register(_State(service))
        self._service = service

    def ended(self, story: Story) -> None:
        """A request has ended."""
        request, decision = story.request, story.decision
        self._by_end[story.status, SLO_CLASSES[request.slo]].inc()
        if decision is not None:
            self._decision.observe(decision.seconds)
            if decision.fallback_reason:
                self._fallbacks.labels(decision.fallback_reason).inc()
            if decision.shadow is not None:
                same = tuple(decision.shadow) == (decision.prefill, decision.decode)
                self._shadow.labels(str(same).lower()).inc()
            for name in (story.prefill, story.decode):
                if name is not None:
                    self._assigned.labels(name).inc()
        if story.attempts > 1:
            self._retries.inc(story.attempts - 1)
        if story.prefill_again:
            self._again.inc(story.prefill_again)
        if story.status != "finished":
            return
        ttft, tpot, e2e = self._by_class[request.slo]
        self._of_tokens[0].inc(request.prompt)
        self._of_tokens[1].inc(max(story.generated, 0))
        e2e.observe((story.end - request.arrival) / PS_PER_S)
        if story.first_token >= 0:
            first = story.first_token - request.arrival
            per_token = (story.last_token - story.first_token) / max(story.generated - 1, 1)
            ttft.observe(first / PS_PER_S)
            tpot.observe(per_token / PS_PER_S)
            targets = self._service.router.targets
            if first <= targets.ttft[request.slo] and per_token <= targets.tpot[request.slo]:
                self._targets_met[request.slo].inc()

    def text(self) -> bytes:
        """Prometheus exposition."""
        return generate_latest(self.registry)


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
