"""The built-in policies in plain Python, from their formulas; one object serves all routers of a run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from disaggroute.envs.cluster import PS_PER_S
from disaggroute.envs.records import DECODE_VIEW, PREFILL_VIEW
from disaggroute.envs.router_constants import RouterConstants
from disaggroute.envs.trace import Trace

Row = dict[str, int]
Pick = tuple[int, int, float]
WORD = 2**64


@dataclass(frozen=True)
class Seen:
    """What a router sees at an admission."""

    router: int
    prompt: int
    predicted: int
    tight: bool
    ttft: float
    tpot: float
    prefill: list[Row]
    decode: list[Row]
    aggregated: bool
    views: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    now: int
    poll_time: int

    @staticmethod
    def of(
        admission: Any,
        prefill: npt.NDArray[np.int64],
        decode: npt.NDArray[np.int64],
        trace: Trace,
        aggregated: bool,
    ) -> Seen:
        return Seen(
            router=admission.router,
            prompt=admission.prompt,
            predicted=admission.predicted,
            tight=admission.slo == 0,
            ttft=int(trace.ttft_target[admission.index]) / PS_PER_S,
            tpot=int(trace.tpot_target[admission.index]) / PS_PER_S,
            prefill=[dict(zip(PREFILL_VIEW, row, strict=True)) for row in prefill.tolist()],
            decode=[dict(zip(DECODE_VIEW, row, strict=True)) for row in decode.tolist()],
            aggregated=aggregated,
            views=(prefill, decode),
            now=admission.now,
            poll_time=admission.poll_time,
        )


def open_of(rows: list[Row]) -> list[int]:
    return [i for i, row in enumerate(rows) if row["available"]]


def cheapest(costs: list[float], among: list[int]) -> int:
    return min(among, key=lambda i: (costs[i], i))


class SplitMix:
    """splitmix64, as published."""

    def __init__(self, seed: int) -> None:
        self.state = seed % WORD

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) % WORD
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        return (self.next() >> 32) * n >> 32


class P2Median:
    """The P² algorithm of Jain and Chlamtac for p = 1/2, as in their paper."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.heights: list[float] = []
        self.positions = [1, 2, 3, 4, 5]
        self.desired = [1.0, 2.0, 3.0, 4.0, 5.0]

    def value(self) -> float:
        if self.heights:
            return self.heights[2]
        if not self.first:
            return math.inf
        return sorted(self.first)[(len(self.first) - 1) // 2]

    def add(self, x: float) -> None:
        if len(self.first) < 5:
            self.first.append(x)
            if len(self.first) == 5:
                self.heights = sorted(self.first)
            return
        q, n = self.heights, self.positions
        q[0], q[4] = min(q[0], x), max(q[4], x)
        cell = max(i for i in range(4) if q[i] <= x)
        for i in range(cell + 1, 5):
            n[i] += 1
        self.desired = [d + step for d, step in zip(self.desired, (0, 0.25, 0.5, 0.75, 1), strict=True)]
        for i in (1, 2, 3):
            gap = self.desired[i] - n[i]
            if (gap >= 1 and n[i + 1] - n[i] > 1) or (gap <= -1 and n[i - 1] - n[i] < -1):
                s = 1 if gap > 0 else -1
                new = self.parabolic(i, s)
                q[i] = new if q[i - 1] < new < q[i + 1] else q[i] + s * (q[i + s] - q[i]) / (n[i + s] - n[i])
                n[i] += s

    def parabolic(self, i: int, s: int) -> float:
        q, n = self.heights, self.positions
        above = (n[i] - n[i - 1] + s) * (q[i + 1] - q[i]) / (n[i + 1] - n[i])
        below = (n[i + 1] - n[i] - s) * (q[i] - q[i - 1]) / (n[i] - n[i - 1])
        return q[i] + s / (n[i + 1] - n[i - 1]) * (above + below)


class Plain(ABC):
    """Base: state by router."""

    def __init__(self, seed: int = 0) -> None:
        self.pointers: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        self.medians: dict[int, P2Median] = defaultdict(P2Median)
        self.streams = [
            SplitMix(int(np.random.SeedSequence([seed, router]).generate_state(1, np.uint64)[0]))
            for router in range(8)
        ]

    @abstractmethod
    def choose(self, seen: Seen) -> Pick: ...


class RoundRobin(Plain):
    def choose(self, seen: Seen) -> Pick:
        pointers = self.pointers[seen.router]
        pools = (None if seen.aggregated else seen.prefill, seen.decode)
        picked = []
        for stage, rows in enumerate(pools):
            if rows is not None:
                turn = [(pointers[stage] + step) % len(rows) for step in range(len(rows))]
                picked.append(next(i for i in turn if rows[i]["available"]))
                pointers[stage] = (picked[-1] + 1) % len(rows)
        return picked[0], picked[-1], 1.0


class RandomChoice(Plain):
    def choose(self, seen: Seen) -> Pick:
        stream = self.streams[seen.router]
        decodes, prefills = open_of(seen.decode), open_of(seen.prefill)
        d = decodes[stream.below(len(decodes))]
        if seen.aggregated:
            return d, d, 1 / len(decodes)
        p = prefills[stream.below(len(prefills))]
        return p, d, 1 / len(decodes) / len(prefills)


class LeastLoaded(Plain):
    def choose(self, seen: Seen) -> Pick:
        d = cheapest([row["in_flight"] for row in seen.decode], open_of(seen.decode))
        if seen.aggregated:
            return d, d, 1.0
        return cheapest([row["queued"] for row in seen.prefill], open_of(seen.prefill)), d, 1.0


def better_of_two(costs: list[float], among: list[int], stream: SplitMix) -> tuple[int, float]:
    """The winner and its share of all pairs, every one of which is played."""
    m = len(among)
    if m == 1:
        return among[0], 1.0
    a = stream.below(m)
    b = stream.below(m - 1)
    b += b >= a
    winner = cheapest(costs, [among[a], among[b]])
    won = [cheapest(costs, [x, y]) for x in among for y in among if x < y]
    return winner, won.count(winner) / len(won)


class PowerOfTwo(Plain):
    def choose(self, seen: Seen) -> Pick:
        stream = self.streams[seen.router]
        d, chance = better_of_two([r["in_flight"] for r in seen.decode], open_of(seen.decode), stream)
        if seen.aggregated:
            return d, d, chance
        p, other = better_of_two([r["queued"] for r in seen.prefill], open_of(seen.prefill), stream)
        return p, d, chance * other


class LengthThreshold(Plain):
    def __init__(self, seed: int = 0, threshold: float | None = None) -> None:
        super().__init__(seed)
        self.threshold = threshold

    def choose(self, seen: Seen) -> Pick:
        median = self.medians[seen.router]
        threshold = median.value() if self.threshold is None else self.threshold
        median.add(float(seen.predicted))
        middle = math.ceil(len(seen.decode) / 2)
        everyone = open_of(seen.decode)
        half = [d for d in everyone if (d >= middle) == (seen.predicted > threshold)]
        d = cheapest([row["in_flight"] for row in seen.decode], half or everyone)
        if seen.aggregated:
            return d, d, 1.0
        return cheapest([row["queued"] for row in seen.prefill], open_of(seen.prefill)), d, 1.0


class MarginalCost(Plain):
    def __init__(
        self,
        seed: int,
        constants: RouterConstants,
        *,
        w_b: float = 1,
        w_s: float = 1,
        w_q: float = 0.05,
        rho: float = 1,
        sigma_tight: float = 2,
        sigma_loose: float = 1,
        tau: str = "calibrated",
        tau_scale: float = 1,
        backlog: str = "remaining",
        sample: int | None = None,
        guard: float | None = None,
    ) -> None:
        super().__init__(seed)
        single = tau == "single"
        self.tau_dec = (constants.tau_decode_single if single else constants.tau_decode) * tau_scale
        self.tau_pre = constants.tau_prefill * tau_scale
        self.capacity = constants.kv_capacity.tolist()
        self.prefills = constants.prefills
        self.weights = w_b, w_s, w_q, rho
        self.sigma = {True: sigma_tight, False: sigma_loose}
        self.output = "committed_output" if backlog == "committed" else "remaining_output"
        self.sample, self.guard = sample, guard

    def cost(
        self, tau: float, backlog_tokens: int, own: int, held: int, capacity: int, queue: int, tight: bool
    ) -> float:
        w_b, w_s, w_q, rho = self.weights
        backlog, work, press, sigma = backlog_tokens * tau, own * tau, held / capacity, self.sigma[tight]
        return w_b * backlog * sigma + w_s * work * (1 + rho * press) * sigma + w_q * queue

    def prefill_costs(self, seen: Seen) -> list[float]:
        costs = []
        for i, row in enumerate(seen.prefill):
            tokens = row["queued_tokens"]
            held = tokens + seen.prompt
            tau, capacity = float(self.tau_pre[i]), self.capacity[i]
            costs.append(self.cost(tau, tokens, seen.prompt, held, capacity, row["queued"], seen.tight))
        return costs

    def decode_costs(self, seen: Seen) -> list[float]:
        costs = []
        for i, row in enumerate(seen.decode, self.prefills):
            held = row["committed"] + seen.prompt + seen.predicted
            tau, capacity = float(self.tau_dec[i]), self.capacity[i]
            backlog = row[self.output]
            costs.append(
                self.cost(tau, backlog, seen.predicted, held, capacity, row["in_flight"], seen.tight)
            )
        return costs

    def pick(self, costs: list[float], rows: list[Row], queue: str, stream: SplitMix) -> tuple[int, float]:
        among = open_of(rows)
        if self.guard is not None:
            mean = sum(rows[i][queue] for i in among) / len(among)
            limit = self.guard * (1 + mean)
            costs = [math.inf if rows[i][queue] > limit else cost for i, cost in enumerate(costs)]
        if self.sample is None:
            return cheapest(costs, among), 1.0
        return better_of_two(costs, among, stream)

    def choose(self, seen: Seen) -> Pick:
        stream = self.streams[seen.router]
        prefill, decode = self.prefill_costs(seen), self.decode_costs(seen)
        if seen.aggregated:
            both = [a + b for a, b in zip(prefill, decode, strict=True)]
            m, chance = self.pick(both, seen.decode, "in_flight", stream)
            return m, m, chance
        p, chance = self.pick(prefill, seen.prefill, "queued", stream)
        d, other = self.pick(decode, seen.decode, "in_flight", stream)
        return p, d, chance * other


class ProjectedLatency(Plain):
    """`least-ttft` and `min-tpot`: one stage, or both, by its own latency."""

    def __init__(
        self,
        seed: int,
        constants: RouterConstants,
        *,
        named: str,
        prefill: str = "least-ttft",
        decode: str = "min-tpot",
        growth: float = 0,
    ) -> None:
        super().__init__(seed)
        self.constants, self.named, self.growth = constants, named, growth
        self.ways = prefill, decode
        self.others: dict[str, Plain] = {"least-loaded": LeastLoaded(), "round-robin": RoundRobin()}

    def ttft(self, seen: Seen, i: int) -> float:
        of, p = self.constants, seen.prompt
        backlog = seen.prefill[i]["queued_tokens"] * of.tau_prefill[i]
        return float(backlog + (of.base_prefill[i] + of.per_token[i] * p + of.per_token_sq[i] * p * p))

    def step(self, seen: Seen, i: int) -> float:
        of, row, at = self.constants, seen.decode[i], self.constants.prefills + i
        held = row["context"] + self.growth * row["remaining_output"]
        context = held + (seen.prompt + self.growth * seen.predicted)
        sequences = of.per_sequence[at] * (row["in_flight"] + 1)
        return float(of.base_decode[at] + sequences + of.per_context[at] * context)

    def choose(self, seen: Seen) -> Pick:
        if seen.aggregated:
            costs = [self.step(seen, m) for m in range(len(seen.decode))]
            if self.named == "least-ttft":
                costs = [self.ttft(seen, m) + cost for m, cost in enumerate(costs)]
            m = cheapest(costs, open_of(seen.decode))
            return m, m, 1.0
        other = {name: policy.choose(seen) for name, policy in self.others.items() if name in self.ways}
        p, d = (other[way][stage] if way in other else -1 for stage, way in enumerate(self.ways))
        if p < 0:
            p = cheapest([self.ttft(seen, i) for i in range(len(seen.prefill))], open_of(seen.prefill))
        if d < 0:
            d = cheapest([self.step(seen, i) for i in range(len(seen.decode))], open_of(seen.decode))
        return p, d, 1.0


class BestFit(Plain):
    def __init__(
        self,
        seed: int,
        constants: RouterConstants,
        *,
        ttft_slack: float,
        tpot_slack: float,
        limit: float,
        give_up: float | None,
    ) -> None:
        super().__init__(seed)
        self.constants = constants
        self.slacks, self.limit = (ttft_slack, tpot_slack), limit
        self.give_up = math.inf if give_up is None else give_up
        self.projected = ProjectedLatency(seed, constants, named="least-ttft")

    def prefill(self, seen: Seen, ttfts: list[float]) -> int:
        among = open_of(seen.prefill)
        fitting = [i for i in among if ttfts[i] <= self.slacks[0] * seen.ttft]
        hopeless = all(ttfts[i] > self.give_up * seen.ttft for i in among)
        if fitting or hopeless:
            return cheapest([-ttft for ttft in ttfts], fitting or among)
        return cheapest(ttfts, among)

    def choose(self, seen: Seen) -> Pick:
        capacity = self.constants.kv_capacity[self.constants.prefills :].tolist()
        tokens = seen.prompt + seen.predicted
        pressure = [(row["committed"] + tokens) / size for row, size in zip(seen.decode, capacity, strict=True)]
        ttfts = [self.projected.ttft(seen, i) for i in range(len(seen.prefill))]
        steps = [self.projected.step(seen, i) for i in range(len(seen.decode))]
        fitting = [
            i
            for i in open_of(seen.decode)
            if pressure[i] <= self.limit
            and steps[i] <= self.slacks[1] * seen.tpot
            and (not seen.aggregated or ttfts[i] <= self.slacks[0] * seen.ttft)
        ]
        if seen.aggregated:
            m = cheapest([-x for x in pressure], fitting) if fitting else self.prefill(seen, ttfts)
            return m, m, 1.0
        d = cheapest([-x for x in pressure], fitting) if fitting else cheapest(pressure, open_of(seen.decode))
        return self.prefill(seen, ttfts), d, 1.0


class SizeInterval(Plain):
    def __init__(self, seed: int, constants: RouterConstants, **params: Any) -> None:
        super().__init__(seed)
        self.constants, self.params = constants, params
        self.projected = ProjectedLatency(seed, constants, named="least-ttft")

    def distances(self, stage: str, size: float, tight: bool, instances: int) -> list[float]:
        """In prices, for each instance of the pool."""
        of = {key.removeprefix(f"{stage}_"): value for key, value in self.params.items()}
        cuts = of["cuts"]
        if cuts is None:
            cuts = [of["low"] * (of["high"] / of["low"]) ** (k / instances) for k in range(1, instances)]
        scaled = size if tight else size * of["loose"]
        home = sum(cut <= scaled for cut in cuts)
        places = list(range(instances)) if of["order"] == "ascending" else list(range(instances))[::-1]
        up, down = (of[way] / max(1, instances - 1) for way in ("up", "down"))
        return [(place - home) * up if place > home else (home - place) * down for place in places]

    def choose(self, seen: Seen) -> Pick:
        of = self.constants
        sizes = {"prefill": (seen.prompt, seen.prefill), "decode": (seen.predicted, seen.decode)}
        first, second = (
            self.distances(stage, size, seen.tight, len(rows)) for stage, (size, rows) in sizes.items()
        )
        prefill = [self.projected.ttft(seen, i) + away * of.tau_prefill[i] for i, away in enumerate(first)]
        decode = [
            self.projected.step(seen, i) + away * of.base_decode[of.prefills + i]
            for i, away in enumerate(second)
        ]
        if seen.aggregated:
            m = cheapest([a + b for a, b in zip(prefill, decode, strict=True)], open_of(seen.decode))
            return m, m, 1.0
        return cheapest(prefill, open_of(seen.prefill)), cheapest(decode, open_of(seen.decode)), 1.0


class Card(Plain):
    def __init__(self, seed: int, constants: RouterConstants, **params: Any) -> None:
        super().__init__(seed)
        self.constants, self.params = constants, params

    def pick(self, stage: str, size: int, work: list[float], taus: list[float], rows: list[Row]) -> int:
        cut, band, threshold, long = (
            self.params[f"{stage}_{name}"] for name in ("cut", "band", "threshold", "long")
        )
        n = len(rows)
        first_long = n - min(max(1, round(long * n)), n - 1)
        short = [i for i in open_of(rows) if i < first_long]
        tall = [i for i in open_of(rows) if i >= first_long]
        if not short or not tall:
            return cheapest(work, short or tall)
        best = cheapest(work, short)
        if size < cut / band:
            return best
        if size < cut * band and work[best] < threshold * taus[best]:
            return best
        return cheapest(work, tall)

    def choose(self, seen: Seen) -> Pick:
        pre = [float(tau) for tau in self.constants.tau_prefill]
        dec = [float(tau) for tau in self.constants.tau_decode[self.constants.prefills :]]
        queued = [row["queued_tokens"] * tau for row, tau in zip(seen.prefill, pre, strict=False)]
        left = [row["remaining_output"] * tau for row, tau in zip(seen.decode, dec, strict=True)]
        if seen.aggregated:
            both = [a + b for a, b in zip(queued, left, strict=True)]
            m = self.pick("decode", seen.predicted, both, dec, seen.decode)
            return m, m, 1.0
        p = self.pick("prefill", seen.prompt, queued, pre, seen.prefill)
        return p, self.pick("decode", seen.predicted, left, dec, seen.decode), 1.0
