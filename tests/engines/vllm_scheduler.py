"""vLLM's own scheduler, and that of its NIXL connector, on a simulated clock: no model, no weights, no network.

The engines' Python runs this file, which therefore imports nothing of the project. It reads cases from standard input
and answers each with what became of its requests, a line of JSON for a line of JSON. Its one argument is the folder of
a model, of which only the configuration is read.

What vLLM does here: queues, batches, chunks, blocks, preemption, the end of requests, and when KV is asked for and let
go. What stands in for the rest: a step takes the time of the profile's formula, a pull that of the egress server and
the latency, and every step that completes a prompt or a decode yields one token. The order within an instant is that
of docs/model.md.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

TOKEN = 7
"""What every prompt consists of and every step yields; with prefix caching off it does not matter."""


@dataclass
class Story:
    """What became of a request; times in ps, −1 while not reached."""

    arrival: int
    prompt: int
    output: int
    prefill: int
    decode: int
    prefill_start: int = -1
    prefill_end: int = -1
    reserve: int = -1
    transfer_start: int = -1
    transfer_end: int = -1
    preemptions: int = 0
    tokens: list[int] = field(default_factory=list)

    def told(self) -> dict[str, int]:
        """The columns of a record that vLLM decides."""
        names = ("prefill_start", "prefill_end", "reserve", "transfer_start", "transfer_end", "preemptions")
        return {name: getattr(self, name) for name in names} | {
            "first_token": self.tokens[0],
            "last_token": self.tokens[-1],
            "max_stall": max((after - before for before, after in pairwise(self.tokens)), default=0),
            "generated": len(self.tokens),
        }


@dataclass(frozen=True)
class Pull:
    """KV on its way: which request's, until when, and how many blocks it holds on the prefill engine."""

    end: int
    request: str
    source: Engine
    target: Engine
    blocks: int


class Engine:
    """One engine: a real scheduler, and the step that it is in."""

    def __init__(self, index: int, spec: dict[str, Any], template: VllmConfig) -> None:
        self.index = index
        self.spec = spec
        self.scheduler = _scheduler(f"engine-{index}", spec, template)
        self.step_end: int | None = None
        self.egress_free_at = 0
        self.prefilling: set[str] = set()
        """Requests whose next tokens are a prefill here, the first or (after a preemption) another."""
        self.pulled: set[str] = set()
        """Requests whose KV has come, which the scheduler has not been told yet."""
        self.sent: dict[str, int] = {}
        """Requests whose KV has gone, which the scheduler has not been told yet, with their blocks."""
        self._step = SchedulerOutput.make_empty()

    def add(self, name: str, prompt: int, output: int, transfer: dict[str, Any] | None) -> None:
        """Puts a leg of a request into the queue."""
        extra = {"kv_transfer_params": transfer} if transfer else None
        sampling = SamplingParams(max_tokens=output, ignore_eos=True, extra_args=extra)
        self.scheduler.add_request(Request(name, [TOKEN] * prompt, sampling, None))
        if self.spec["role"] != "decode":
            self.prefilling.add(name)

    def poll(self) -> list[int]:
        """Used blocks, running and waiting requests, as the metrics report them once a step has ended.

        KV that has gone is free, whether the step in which the scheduler learns it has ended or not.
        """
        usable, free = self.spec["num_blocks"], self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        running, waiting = self.scheduler.get_request_counts()
        return [usable - free - sum(self.sent.values()), running, waiting]

    def schedule(self, now: int) -> SchedulerOutput:
        """One pass; a step begins if it has work."""
        step = self.scheduler.schedule()
        self.prefilling |= step.preempted_req_ids
        if step.total_num_scheduled_tokens:
            self.step_end = now + self._duration(step)
            self._step = step
        else:
            self.scheduler.update_from_output(step, EMPTY_MODEL_RUNNER_OUTPUT)
        return step

    def _duration(self, step: SchedulerOutput) -> int:
        """The step time of docs/model.md for what vLLM has put into the step."""
        decodes = context = tokens = squares = 0
        for name, new in step.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            end = request.num_computed_tokens  # as it will be after the step
            if name in self.prefilling:
                tokens += new
                squares += end**2 - (end - new) ** 2
                if end == request.num_tokens:
                    self.prefilling.remove(name)
            else:
                assert new == 1 and end == request.num_tokens, f"{name} decodes {new} tokens up to {end}"
                decodes += 1
                context += end
        spec = self.spec
        base = spec["base_decode" if not tokens else "base_mixed" if decodes else "base_prefill"]
        linear = spec["per_context"] * context + spec["per_token"] * tokens + spec["per_token_sq"] * squares
        return int(base + spec["batch"][decodes] + linear)

    def end_step(self) -> Iterator[Any]:
        """The step's tokens go to the scheduler, and what has been pulled; yields its answers, request by request."""
        self.step_end = None
        names = list(self._step.num_scheduled_tokens)
        requests = [self.scheduler.requests[name] for name in names]
        sampled = [[TOKEN] if r.num_computed_tokens == r.num_tokens else [] for r in requests]
        places = {name: place for place, name in enumerate(names)}
        made = ModelRunnerOutput(names, places, sampled, kv_connector_output=self._transfers())
        for answer in self.scheduler.update_from_output(self._step, made).values():
            yield from answer.outputs

    def tell_transfers(self) -> None:
        """An idle engine learns at once what has been pulled."""
        if self.pulled or self.sent:
            told = ModelRunnerOutput.with_kv_conn_output_only(self._transfers())
            self.scheduler.update_from_output(SchedulerOutput.make_empty(), told)

    def _transfers(self) -> KVConnectorOutput:
        told = KVConnectorOutput(finished_sending=set(self.sent), finished_recving=self.pulled)
        self.pulled, self.sent = set(), {}
        return told


class Run:
    """One case: the engines and the requests, from instant to instant."""

    def __init__(self, case: dict[str, Any], template: VllmConfig) -> None:
        self.engines = [Engine(i, spec, template) for i, spec in enumerate(case["engines"])]
        self.latency = case["latency"]
        self.stories = [Story(*row) for row in case["requests"]]
        self.to_come = list(range(len(self.stories)))
        self.pulls: list[Pull] = []
        self.poll_interval = case["poll_interval"]
        self.tick = -1
        self.polled: list[list[int]] = []
        self.polls: list[list[list[int]]] = []

    def outcome(self) -> dict[str, Any]:
        """Runs until every request has its tokens."""
        while any(len(story.tokens) < story.output for story in self.stories):
            now = self._next_instant()
            self._poll(now)
            self._end_transfers(now)
            self._end_steps(now)
            self._admit(now)
            for engine in self.engines:
                self._make_passes(engine, now)
        return {"requests": [story.told() for story in self.stories], "polls": self.polls}

    def _next_instant(self) -> int:
        times = [engine.step_end for engine in self.engines if engine.step_end is not None]
        times += [pull.end for pull in self.pulls]
        times += [self.stories[i].arrival for i in self.to_come[:1]]
        if not times:
            left = [i for i, story in enumerate(self.stories) if len(story.tokens) < story.output]
            raise RuntimeError(f"vLLM is idle for good, and requests {left} have not ended")
        return min(times)

    def _poll(self, now: int) -> None:
        tick = now // self.poll_interval
        if tick > self.tick:
            self.tick = tick
            self.polled = [engine.poll() for engine in self.engines]

    def _end_transfers(self, now: int) -> None:
        """Only notes them: the schedulers learn them with the end of a step, or at once when idle."""
        for pull in [pull for pull in self.pulls if pull.end == now]:
            self.pulls.remove(pull)
            self.stories[int(pull.request)].transfer_end = now
            pull.target.pulled.add(pull.request)
            pull.source.sent[pull.request] = pull.blocks

    def _end_steps(self, now: int) -> None:
        for engine in self.engines:
            if engine.step_end == now:
                for answer in engine.end_step():
                    self._take(engine, answer, now)
            elif engine.step_end is None:
                engine.tell_transfers()

    def _take(self, engine: Engine, answer: Any, now: int) -> None:
        """What a step has yielded for one request."""
        story = self.stories[int(answer.request_id)]
        if engine.spec["role"] == "prefill":
            assert answer.finished and answer.kv_transfer_params, "a prefill leg has ended without its transfer"
            story.prefill_end = now
            target = self.engines[story.decode]
            target.add(answer.request_id, story.prompt, story.output, answer.kv_transfer_params)
            return
        story.tokens += [now] * len(answer.new_token_ids)
        if engine.spec["role"] == "mixed" and len(story.tokens) == 1:
            story.prefill_end = now
        assert answer.finished == (len(story.tokens) == story.output), "a request has ended at another length"

    def _admit(self, now: int) -> None:
        while self.to_come and self.stories[self.to_come[0]].arrival == now:
            index = self.to_come.pop(0)
            story = self.stories[index]
            self.polls.append(self.polled)
            if self.engines[story.prefill].spec["role"] == "mixed":
                self.engines[story.prefill].add(str(index), story.prompt, story.output, None)
            else:
                self.engines[story.prefill].add(str(index), story.prompt, 1, {"do_remote_decode": True})

    def _make_passes(self, engine: Engine, now: int) -> None:
        """As vLLM's engine loop, which goes on at once after a pass without work, until a pass does nothing at all."""
        while engine.step_end is None:
            step = engine.schedule(now)
            for name in step.num_scheduled_tokens:
                story = self.stories[int(name)]
                if story.prefill_start < 0:
                    story.prefill_start = now
            for name in step.preempted_req_ids:
                self.stories[int(name)].preemptions += 1
            asked = {} if step.kv_connector_metadata is None else step.kv_connector_metadata.reqs_to_recv
            for name, pull in asked.items():
                self._start_pull(engine, name, pull, now)
            if not step.preempted_req_ids and not asked:
                return

    def _start_pull(self, engine: Engine, name: str, pull: Any, now: int) -> None:
        """Books the egress server of the prefill engine that the connector names."""
        story = self.stories[int(name)]
        source = self.engines[story.prefill]
        assert pull.remote.engine_id == f"engine-{source.index}" and pull.remote.request_id == name
        ((local,), (remote,)) = pull.local_block_ids, pull.remote.block_ids
        assert len(local) == len(remote), f"{len(remote)} blocks are pulled into {len(local)}"
        story.reserve = now
        story.transfer_start = max(now, source.egress_free_at)
        source.egress_free_at = story.transfer_start + len(remote) * source.spec["egress_per_block"]
        end = source.egress_free_at + self.latency[story.prefill][story.decode - len(self.latency)]
        self.pulls.append(Pull(end, name, source, engine, len(remote)))


def _template(model: str) -> VllmConfig:
    """A configuration that vLLM has checked; each engine changes its limits in a copy."""
    return VllmConfig(
        model_config=ModelConfig(model=model, dtype="float32", skip_tokenizer_init=True, enforce_eager=True),
        scheduler_config=SchedulerConfig(
            max_model_len=4096, is_encoder_decoder=False, enable_chunked_prefill=True, async_scheduling=False
        ),
        cache_config=CacheConfig(block_size=32, enable_prefix_caching=False),
        device_config=DeviceConfig("cpu"),
    )


def _scheduler(engine_id: str, spec: dict[str, Any], template: VllmConfig) -> Scheduler:
    size, blocks = spec["block_size"], spec["num_blocks"] + 1  # vLLM keeps one block for itself
    config = copy(template)
    config.model_config = copy(template.model_config)
    config.scheduler_config = copy(template.scheduler_config)
    config.cache_config = copy(template.cache_config)
    config.model_config.max_model_len = config.scheduler_config.max_model_len = spec["max_model_len"]
    config.scheduler_config.max_num_seqs = spec["max_num_seqs"]
    config.scheduler_config.max_num_batched_tokens = spec["max_num_batched_tokens"]
    config.cache_config.block_size = size
    config.cache_config.num_gpu_blocks = blocks
    if spec["role"] != "mixed":
        role = "kv_producer" if spec["role"] == "prefill" else "kv_consumer"
        config.kv_transfer_config = KVTransferConfig(kv_connector="NixlConnector", kv_role=role, engine_id=engine_id)
    layer = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)])
    return Scheduler(config, cache, StructuredOutputManager(config), block_size=size)


def main() -> None:
    """Answers cases until there are no more."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever vLLM prints is no answer
    template = _template(sys.argv[1])
    for line in sys.stdin:
        try:
            answer = Run(json.loads(line), template).outcome()
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
