"""`disaggroute live serve`: the router as an OpenAI-compatible endpoint."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from .cluster_file import LiveCluster
    from .server import Doors
    from .service import ServiceOptions

PROFILE = "a40-qwen2.5-3b"
"""Of emulated engines, unless another is named: the study's."""


def serve(
    cluster: Annotated[
        str | None, typer.Argument(metavar="[CLUSTER]", help="Live cluster: a name or a YAML file. Or use --emulate.")
    ] = None,
    emulate: Annotated[
        str | None, typer.Option(metavar="TOPOLOGY", help="Start emulated engines, such as 2P4D, and serve on them.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="Policy: NAME, with parameters in brackets, or of a file after @.")
    ] = "marginal-cost",
    shadow: Annotated[
        str | None, typer.Option(help="A second policy, which decides too, is recorded, and moves nothing.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address for clients.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port for clients; 0: any free one.")] = 8000,
    admin_host: Annotated[str, typer.Option(help="Address for metrics and administration.")] = "127.0.0.1",
    admin_port: Annotated[int, typer.Option(min=0, max=65_535, help="Its port; 0: any free one.")] = 8001,
    api_keys: Annotated[
        Path | None, typer.Option(help="File of keys, one per line, of which clients must show one.")
    ] = None,
    admin_keys: Annotated[
        Path | None, typer.Option(help="The same for operators. Default: a random key, shown at the start.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Serve clients of other machines without keys.")] = False,
    records: Annotated[
        Path | None, typer.Option(help="File of the records, a line per request. Default: in the folder live-records.")
    ] = None,
    keep_prompts: Annotated[
        bool, typer.Option("--keep-prompts", help="Keep what clients write in the records.")
    ] = False,
    predictor: Annotated[
        str, typer.Option(help="Learns output lengths: bucket, prompt-bucket or prompt-regression.")
    ] = "bucket",
    seed: Annotated[int, typer.Option(help="Of what is random in a policy.")] = 0,
    options: Annotated[
        Path | None, typer.Option(help="YAML file of further options (docs/live.md); the command line goes first.")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds that engines may take to answer at the start.")] = 60.0,
    profile: Annotated[str, typer.Option(help="Profile of emulated engines.")] = PROFILE,
    time_scale: Annotated[
        float, typer.Option(help="Wall seconds of an emulated engine's second: 10 is slower than life.")
    ] = 1.0,
    kv_tokens: Annotated[int | None, typer.Option(help="Tokens of an emulated engine's KV cache.")] = None,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="End when the standard input ends, as it does with the parent.")
    ] = False,
) -> None:
    """Serve an OpenAI-compatible endpoint on the engines of a cluster, or on emulated ones.

    Clients find /v1/completions, /v1/chat/completions and /v1/models at one port; metrics, administration and the
    ledger are at another, behind a key of their own.
    """
    if (cluster is None) == (emulate is None):
        raise ValueError("give a live cluster, or --emulate with a topology such as 2P4D")
    from .emulated_cluster import EmulatedCluster, default_records
    from .emulator.process import die_with_parent
    from .running import running, way_out
    from .server import Doors, new_key, read_keys

    if with_parent:
        die_with_parent()
    doors = Doors(
        host,
        port,
        admin_host,
        admin_port,
        read_keys(api_keys) if api_keys else [],
        read_keys(admin_keys) if admin_keys else [new_key()],
        open_,
    )
    doors.check()
    given = {
        "policy": policy,
        "shadow": shadow,
        "predictor": predictor,
        "seed": seed,
        "keep_prompts": keep_prompts,
    }
    settings = _options(options, given)
    shown_key = None if admin_keys else doors.admin_keys[0]
    with contextlib.ExitStack() as stack:
        if emulate is not None:
            engines = EmulatedCluster(emulate, profile, time_scale=time_scale, kv_tokens=kv_tokens)
            _say(f"starting {len(engines.config.instance_names())} emulated engines")
            served = stack.enter_context(engines).cluster()
        else:
            served = running(str(cluster))
            if away := way_out(served):  # It serves on the others, and waits for these.
                _say(away)
        file = records or default_records(Path("live-records"), served.name)
        _run(served, settings, doors, file, wait, shown_key)


def _options(file: Path | None, given: dict[str, Any]) -> ServiceOptions:
    """Options of the file, where the command line does not say otherwise."""
    from ..envs import catalog
    from ..envs.yaml_file import read_mapping
    from .service import ServiceOptions

    written = read_mapping(file, str(file)) if file else {}
    usual = ServiceOptions().model_dump()
    said = {key: value for key, value in given.items() if value != usual[key] or key not in written}
    return catalog.validate(ServiceOptions, written | said, str(file) if file else "options")


def _run(
    cluster: LiveCluster, settings: ServiceOptions, doors: Doors, records: Path, wait: float, shown_key: str | None
) -> None:
    import asyncio
    import logging

    from .event_loop import new_event_loop
    from .server import serve as run
    from .service import Service

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    service = Service(cluster, settings, records)

    def ready(clients: str, operators: str) -> None:
        _say(f"serving {cluster.model} on {cluster.name} at {clients}/v1 with {service.router.policy}")
        _say(f"metrics and administration at {operators}" + (f", key {shown_key}" if shown_key else ""))
        _say(f"records in {records}; Ctrl-C drains and ends")

    async def main() -> bool:
        return await run(service, doors, wait_s=wait, ready=ready)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        done = runner.run(main())
    _say(f"{service.records.written} lines of records in {records}")
    if not done:
        raise RuntimeError("requests in flight were cut off; their records say so")


def _say(text: str) -> None:
    typer.echo(text, err=True)
