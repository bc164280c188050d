"""The router in a process of its own, as `disaggroute live serve` runs it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import orjson

from ..live.cluster_file import LiveCluster
from ..live.server import Doors, serve
from ..live.service import Service, ServiceOptions
from .fake_engine import input_ends


async def _serve(service: Service) -> None:
    stop = asyncio.Event()
    doors = Doors(port=0, admin_port=0, admin_keys=["benchmark"])
    running = asyncio.create_task(
        serve(service, doors, wait_s=10.0, ready=lambda clients, _: print(clients, flush=True), stop=stop)
    )
    ended = asyncio.create_task(input_ends())
    await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    await running


def main(cluster: str, options: str, records: str) -> None:
    """The program of its process: cluster and options in JSON, and the file of the records.

    Writes its address in one line, and ends with its standard input.
    """
    import uvloop

    logging.basicConfig(level=logging.WARNING)
    settings = ServiceOptions.model_validate(orjson.loads(options))
    service = Service(LiveCluster.load(orjson.loads(cluster)), settings, Path(records))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(service))
