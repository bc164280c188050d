"""What the router costs in front of engines: CPU time per request, added time, requests in flight, a decision."""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .drive import PROFILE, Say
from .interpreter import PACKAGE
from .measurement import Result, at_least, count_name

if TYPE_CHECKING:
    from .load_generator import Stretch, Taken

LIBRARIES = ("uvloop", "httptools", "orjson", "fastapi", "uvicorn")

POOLS = (2, 4)
"""Prefill and decode engines."""

STEP_S = 0.0005
"""Between two tokens of a stream, s."""

WHOLE_TOKENS, STREAM_TOKENS = 16, 32

PEER = "vllm-router"
"""Command of another router, measured beside ours where it is installed."""

HELD = (1_000, 4_000, 16_000)
"""Streams that are held open."""

HELD_STEP_S, HELD_TOKENS = 1.0, 12
"""A token of each per second, spread over the second."""

OPENING = 800
"""Streams that are opened per second, at least."""

MAIN = f"import sys; from {PACKAGE}.benchmarks.{{}} import main; main(*sys.argv[1:])"


class Kind(NamedTuple):
    """Requests of one kind."""

    name: str
    tokens: int
    stream: bool
    requests: int
    concurrency: int


class Server(NamedTuple):
    """A server and its process."""

    port: int
    pid: int


def missing() -> str | None:
    """Why nothing can be measured here, or None: a library that the router needs is not installed, or the system."""
    name = next((name for name in LIBRARIES if find_spec(name) is None), None)
    if name is not None:
        return f"{name} is not installed, and the router needs it; `pip install 'disaggroute[live]'`"
    if not sys.platform.startswith("linux"):
        return f"the system is {sys.platform}; CPU times of other processes are read on Linux only"
    return None


def measure(
    *,
    requests: int = 2_000,
    concurrency: int = 32,
    step_s: float = STEP_S,
    held: Sequence[int] = HELD,
    repeats: int = 5,
    realtime: bool = False,
    say: Say = lambda _: None,
) -> list[Result]:
    """CPU time per request of the router at 2P4D, beside a bare proxy and vllm-router.

    The proxies have one core, the same; engines and clients have the others, if there are any.

    Args:
        requests: of a repeat; half as many streams, a tenth one at a time.
        concurrency: requests in flight.
        step_s: between two tokens of a stream, s.
        held: streams that are held open; none leaves that out.
        repeats: how often each number is measured.
        realtime: gives proxies the priority of real-time programs, so that others disturb less (needs the right).
        say: told what is being done.

    Returns:
        `proxy/whole` (16 tokens) and `proxy/stream` (32 tokens), µs of CPU time per request; `proxy/added`, ms that a
        request takes longer than at an engine, one at a time; `proxy/idle`, % of the core without requests; each but
        the last also for the `bare` proxy and `vllm-router`, with `over-` how many times less ours needs;
        `proxy/held/1k`, kB of memory per open stream; `proxy/held`, the most streams held.

    Raises:
        ValueError: a library is missing, this is not Linux, or a number is out of range.
        RuntimeError: an answer was not whole, or a process failed.
    """
    at_least("requests", requests)
    at_least("repeats", repeats)
    check(concurrency=concurrency, step_s=step_s)
    kinds = (
        Kind("whole", WHOLE_TOKENS, False, requests, concurrency),
        Kind("stream", STREAM_TOKENS, True, max(requests // 2, 1), concurrency),
        Kind("added", WHOLE_TOKENS, False, max(requests // 10, 1), 1),
    )
    with ExitStack() as stack:
        ports = stack.enter_context(engines(step_s))
        servers = {"": stack.enter_context(router(ports, realtime=realtime))}
        servers["bare"] = stack.enter_context(bare_proxy(ports, realtime=realtime))
        if (command := shutil.which(PEER)) is not None:
            servers[PEER] = stack.enter_context(peer(command, ports, realtime=realtime))
        else:
            say(f"{PEER} is left out: it is not installed")
        idle = [idle_share(servers[""].pid) for _ in range(repeats)]
        say(f"proxy: {repeats} rounds of {', '.join(name or 'ours' for name in servers)}")
        taken = rounds(kinds, servers, ports[-1], repeats)
    results = list(costs(kinds, list(servers), taken))
    results.append(Result.of("proxy/idle", "%", idle))
    return [*results, *(hold(held, realtime=realtime, say=say) if held else [])]


def check(*, concurrency: int, step_s: float) -> None:
    """Refuses what cannot be measured.

    Raises:
        ValueError: a library is missing, this is not Linux, or a number is out of range.
    """
    at_least("concurrency", concurrency)
    if not 0 < step_s <= 1:
        raise ValueError(f"step is {step_s * 1e3:g} ms; it must be above 0 and at most 1000")
    if (why := missing()) is not None:
        raise ValueError(why)


# --- the processes ------------------------------------------------------------------------------------


@contextmanager
def process(arguments: Sequence[str], *, proxy: bool, realtime: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A process on the core of the proxies or on the others; ends with the block, or with this process."""
    allowed = os.sched_getaffinity(0)
    mine = {max(allowed)}  # Systems tend to serve interrupts on the first core.
    scheduler, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setaffinity(0, mine if proxy else allowed - mine or mine)
    try:
        if realtime and proxy:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
        started = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    finally:
        os.sched_setscheduler(0, scheduler, parameters)
        os.sched_setaffinity(0, allowed)
    try:
        yield started
    finally:
        assert started.stdin is not None and started.stdout is not None
        started.stdin.close()
        try:
            started.wait(10 if started.poll() is None else 0)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        started.stdout.close()


def ours(module: str, *arguments: str) -> list[str]:
    """The command of a program of this package."""
    return [sys.executable, "-c", MAIN.format(module), *arguments]


def line_of(child: subprocess.Popen[str], what: str) -> str:
    """The next line that a process writes.

    Raises:
        RuntimeError: it writes none.
    """
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"{what} failed (exit code {child.wait()})")
    return line.strip()


@contextmanager
def engines(step_s: float, groups: int = 1) -> Iterator[list[int]]:
    """Fake engines; their ports, prefill first."""
    with process(ours("fake_engine", str(sum(POOLS)), str(step_s), str(groups)), proxy=False) as child:
        yield [int(port) for port in line_of(child, "the process of the engines").split()]


@contextmanager
def router(ports: Sequence[int], *, realtime: bool = False, **options: Any) -> Iterator[Server]:
    """The router in front of engines, with polls and records as in service."""
    from .fake_engine import MODEL

    urls = [{"url": f"http://127.0.0.1:{port}"} for port in ports]
    cluster: dict[str, Any] = {"model": MODEL, "profile": PROFILE, "tokenizer": "bytes"}
    cluster |= {"prefill": urls[: POOLS[0]], "decode": urls[POOLS[0] :]}
    with tempfile.TemporaryDirectory() as folder:
        arguments = json.dumps(cluster), json.dumps(options), str(Path(folder) / "records.jsonl")
        with process(ours("router_process", *arguments), proxy=True, realtime=realtime) as child:
            yield Server(_port(line_of(child, "the router")), child.pid)


@contextmanager
def bare_proxy(ports: Sequence[int], *, realtime: bool = False) -> Iterator[Server]:
    """The bare proxy in front of engines."""
    pools = [",".join(map(str, pool)) for pool in (ports[: POOLS[0]], ports[POOLS[0] :])]
    with process(ours("bare_proxy", *pools), proxy=True, realtime=realtime) as child:
        yield Server(_port(line_of(child, "the bare proxy")), child.pid)


@contextmanager
def peer(command: str, ports: Sequence[int], *, realtime: bool = False) -> Iterator[Server]:
    """vllm-router in front of engines."""
    port, metrics = free_port(), free_port()
    arguments = [command, "--vllm-pd-disaggregation", "--policy", "round_robin", "--log-level", "error"]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    for k, engine in enumerate(ports):
        arguments += ["--prefill" if k < POOLS[0] else "--decode", f"http://127.0.0.1:{engine}"]
    with process(arguments, proxy=True, realtime=realtime) as child:
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}/health", child)
            yield Server(port, child.pid)
        finally:
            child.terminate()


def _wait_until_ready(url: str, child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and child.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"{PEER} did not start")


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def drive(plan: Sequence[Stretch]) -> list[Taken]:
    """Has the load generator go through some stretches.

    Raises:
        RuntimeError: it failed.
    """
    from .load_generator import Taken

    text = json.dumps([stretch.model_dump() for stretch in plan])
    with process(ours("load_generator", text), proxy=False) as child:
        return [Taken.model_validate_json(line_of(child, "the load generator")) for _ in plan]


# --- what is measured ---------------------------------------------------------------------------------


def rounds(
    kinds: Sequence[Kind], servers: dict[str, Server], engine: int, repeats: int
) -> dict[tuple[str, str], list[Taken]]:
    """Every kind of request to every server in turn, again and again; by kind and server.

    The first round is not counted. Requests one at a time go to an engine itself, too.

    Raises:
        RuntimeError: an answer was not whole.
    """
    keys: list[tuple[str, str]] = []
    plan: list[Stretch] = []
    for kind in kinds:
        for name, server in servers.items():
            keys.append((kind.name, name))
            plan.append(_stretch(kind, server))
        if kind.concurrency == 1:
            keys.append((kind.name, "engine"))
            plan.append(_stretch(kind, Server(engine, 0)))
    taken: dict[tuple[str, str], list[Taken]] = {key: [] for key in keys}
    for k, one in enumerate(drive(plan * (repeats + 1))):
        key = keys[k % len(keys)]
        if one.bad:
            raise RuntimeError(f"proxy/{key[0]}: {one.bad} answers of {key[1] or 'ours'} were not whole")
        if k >= len(keys):
            taken[key].append(one)
    return taken


def _stretch(kind: Kind, server: Server) -> Stretch:
    from .load_generator import Stretch

    return Stretch(
        port=server.port,
        pid=server.pid,
        requests=kind.requests,
        concurrency=min(kind.concurrency, kind.requests),
        tokens=kind.tokens,
        stream=kind.stream,
    )


def costs(
    kinds: Sequence[Kind], servers: Sequence[str], taken: dict[tuple[str, str], list[Taken]]
) -> Iterator[Result]:
    """The results of the rounds."""
    for kind in kinds:
        values: dict[str, list[float]] = {}
        for name in servers:
            these = taken[kind.name, name]
            label = "/".join(["proxy", kind.name, *([name] if name else [])])
            if kind.concurrency == 1:
                direct = taken[kind.name, "engine"]
                values[name] = [(one.p50_s - plain.p50_s) * 1e3 for one, plain in zip(these, direct, strict=True)]
                yield Result.of(label, "ms", values[name])
                continue
            values[name] = [one.cpu_s / kind.requests * 1e6 for one in these]
            rate = statistics.median(kind.requests / one.seconds for one in these)
            share = statistics.median(one.cpu_s / one.seconds for one in these)
            yield Result.of(label, "µs", values[name], rate=rate, core_share=share, concurrency=kind.concurrency)
        for name in servers:
            if name and kind.concurrency > 1:
                ratios = [other / own for other, own in zip(values[name], values[""], strict=True)]
                yield Result.of(f"proxy/{kind.name}/over-{name}", "×", ratios)


def idle_share(pid: int, seconds: float = 1.0) -> float:
    """Share of a core that a process takes when nobody asks it anything, in %."""
    from .load_generator import cpu_seconds

    cpu, started = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(pid) - cpu) / (time.monotonic() - started) * 100


def hold(held: Sequence[int], *, realtime: bool = False, say: Say = lambda _: None) -> list[Result]:
    """Holds streams open, more and more of them, and looks at the router's memory.

    Each level has a new router. Streams give a token a second.

    Args:
        held: levels.
        realtime: as for `measure`.
        say: told what is being done.

    Returns:
        `proxy/held/1k`, kB of memory per open stream (10³ bytes), for each level that was held: all streams were open
        together, went on, and came to their end whole; `proxy/held`, the most streams that were held.
    """
    from .load_generator import Stretch, resident_bytes

    results, most = [], 0
    for count in sorted(held):
        name = f"proxy/held/{count_name(count)}"
        if (limit := _allow_files(2 * count + 512)) < 2 * count + 512:
            say(f"{name} is left out: a process may open {limit} files here, and it takes two for each stream")
            continue
        say(name)
        tokens = HELD_TOKENS + count // OPENING
        with (
            engines(HELD_STEP_S, groups=25) as ports,
            router(ports, realtime=realtime, max_in_flight=count + 100) as server,
        ):
            before = resident_bytes(server.pid)
            some = Stretch(port=server.port, pid=server.pid, requests=64, concurrency=32, tokens=2, stream=True)
            wanted = some.model_copy(update={"requests": count, "concurrency": count, "tokens": tokens})
            # Of a few streams only the caches are warm.
            _, one = drive([some, wanted])
        if one.bad or one.most_open < count:
            say(f"{name}: {one.bad} answers were not whole, {one.most_open} streams were open together")
            break
        most = count
        about = {"rss_mb": one.rss / 1e6, "core_share": one.cpu_s / one.seconds}
        results.append(Result.of(name, "kB", [(one.rss - before) / count / 1e3], **about))
    return [*results, *([Result.of("proxy/held", "requests", [most])] if most else [])]


def _allow_files(wanted: int) -> int:
    """Lets this process and those that it starts open so many files, if it may; how many it is."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        for limits in ((wanted, max(hard, wanted)), (hard, hard)):
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                break
            except (ValueError, OSError):
                continue
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
