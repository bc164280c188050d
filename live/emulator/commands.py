"""`disaggroute live engine`: run an emulated engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from .emulated_engine import EmulatedEngine


def emulate_engine(
    profile: Annotated[str, typer.Option(help="Name of a profile, or path of its YAML file.")],
    role: Annotated[str, typer.Option(help="prefill, decode or mixed.")],
    port: Annotated[int, typer.Option(help="Port of the HTTP API; 0: any free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    side_channel_port: Annotated[
        int, typer.Option(help="Port that decode engines pull KV from; 0: any free one.")
    ] = 0,
    side_channel_host: Annotated[str, typer.Option(help="Address of that port.")] = "127.0.0.1",
    model: Annotated[str | None, typer.Option(help="Name of the model. Default: the profile's.")] = None,
    kv_tokens: Annotated[int | None, typer.Option(help="Tokens that the KV cache holds.")] = None,
    num_blocks: Annotated[int | None, typer.Option(help="The same in KV blocks.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens of a KV block.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Requests that run at a time.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Tokens of a step.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Context limit, tokens.")] = None,
    lease_s: Annotated[
        float | None, typer.Option(help="Engine seconds for which KV is held for a decode engine.")
    ] = None,
    egress_gb_per_s: Annotated[float | None, typer.Option(help="Rate at which KV is pulled from it.")] = None,
    latency_ms: Annotated[float | None, typer.Option(help="Latency of such a pull.")] = None,
    time_scale: Annotated[float, typer.Option(help="Wall seconds of an engine second: 10 is slower than life.")] = 1.0,
    kv_load_failure_policy: Annotated[str, typer.Option(help="fail or recompute.")] = "fail",
    hazards: Annotated[
        bool, typer.Option("--hazards/--no-hazards", help="A malformed decode leg does the harm it does to vLLM.")
    ] = True,
    fault: Annotated[
        list[str] | None, typer.Option(help="A fault from the start, as in drop_connection:tokens=3,requests=2.")
    ] = None,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="End when the standard input ends, as it does with the parent.")
    ] = False,
) -> None:
    """Run one emulated engine: vLLM's HTTP API, timed by a profile."""
    from ...envs import catalog
    from . import faults, process
    from .options import EngineOptions

    if with_parent:
        process.die_with_parent()
    overrides: dict[str, Any] = {
        "kv_tokens": kv_tokens,
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_model_len": max_model_len,
        "lease_s": lease_s,
        "egress_gb_per_s": egress_gb_per_s,
        "latency_ms": latency_ms,
    }
    given: dict[str, Any] = {
        "profile": profile,
        "role": role,
        "model": model,
        "host": host,
        "port": port,
        "side_channel_host": side_channel_host,
        "side_channel_port": side_channel_port,
        "overrides": {key: value for key, value in overrides.items() if value is not None},
        "time_scale": time_scale,
        "kv_load_failure_policy": kv_load_failure_policy,
        "hazards": hazards,
        "faults": [faults.parse(text) for text in fault or ()],
    }
    process.run(catalog.validate(EngineOptions, given, "engine"), _ready)


def _ready(engine: EmulatedEngine) -> None:
    """Says in one line where the engine is."""
    side = f", side channel {engine.side_channel_port}" if engine.side_channel_port else ""
    options = engine.options
    typer.echo(f"emulated {options.role} engine of {options.served_model()} at {engine.url}{side}")
