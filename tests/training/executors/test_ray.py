"""Ray: nodes that die in the middle, nodes that are not alike, and clusters that are not there."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.training.evaluation import evaluate
from disaggroute.training.executors import ray, ray_worker
from disaggroute.training.executors.choice import make_executor
from disaggroute.training.executors.ray import RayExecutor

from .tasks import node_of

MEMORY = 80 * 1024**2
"""The smallest object store that Ray takes, about."""


def started(start: Callable[[], Any], tries: int = 5) -> Any:
    """What starts within the 30 s that Ray gives it; other tests may keep the machine busy."""
    for left in reversed(range(tries)):
        before = children()
        try:
            return start()
        except Exception as error:
            for pid in children() - before:  # Ray leaves the parts that did come up, and they would slow the next try.
                os.kill(pid, signal.SIGKILL)
            if not left or "timed out" not in str(error).lower():
                raise


def children() -> set[int]:
    """Processes that this one has started."""
    return {int(word) for task in Path("/proc/self/task").iterdir() for word in (task / "children").read_text().split()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster whose first node, of one CPU, is this machine's."""
    from ray.cluster_utils import Cluster

    made = Cluster()
    started(lambda: made.add_node(num_cpus=1, object_store_memory=MEMORY, include_dashboard=False))
    yield made
    made.shutdown()


@pytest.fixture
def second(cluster: Any) -> Iterator[Any]:
    """Another node of one CPU, which a test may kill."""
    node = started(lambda: cluster.add_node(num_cpus=1, object_store_memory=MEMORY))
    yield node
    if node in cluster.list_all_nodes():
        cluster.remove_node(node)


@pytest.fixture
def executor(cluster: Any, second: Any) -> Iterator[RayExecutor]:
    with RayExecutor(address=cluster.address) as made:
        yield made


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait for somebody to ask how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.02)


def begun(folder: Path, node: Any) -> list[tuple[int, int]]:
    """Number and process of the runs of `node_of` on a node, but the first one."""
    names = [path.name.split("-") for path in folder.glob("*-*-*")]
    here = [(int(number), end) for number, where, end in names if where == node._node_id]
    return [(number, int(end)) for number, end in here if number and end != "done"]


def test_runs_of_a_node_that_is_killed_are_done_again_on_another(
    cluster: Any, second: Any, executor: RayExecutor, tmp_path: Path
) -> None:
    assert executor.count == 2
    results = executor.run(node_of, [(tmp_path, k) for k in range(6)])
    assert next(results)[0] == 0
    wait_until(lambda: all(begun(tmp_path, node) for node in cluster.list_all_nodes()))
    lost = begun(tmp_path, second)
    cluster.remove_node(second, allow_graceful=False)
    wait_until(lambda: not any(alive(pid) for _, pid in lost))
    (tmp_path / "go").touch()
    found = {number: node for number, node, _ in results}
    assert sorted(found) == [1, 2, 3, 4, 5]
    assert executor.lost >= 1
    assert {found[number] for number, _ in lost} == {cluster.head_node._node_id}


def test_a_result_that_is_lost_with_its_node_is_made_again(
    cluster: Any, second: Any, executor: RayExecutor, tmp_path: Path
) -> None:
    results = executor.run(node_of, [(tmp_path, k) for k in range(6)])
    assert next(results)[0] == 0
    wait_until(lambda: all(begun(tmp_path, node) for node in cluster.list_all_nodes()))
    kept = [number for number, _ in begun(tmp_path, second)]
    (tmp_path / "go").touch()
    wait_until(lambda: all((tmp_path / f"{number}-{second._node_id}-done").exists() for number in kept))
    cluster.remove_node(second, allow_graceful=False)
    assert sorted((number, content) for number, _, content in results) == [(k, bytes(1_000_000)) for k in range(1, 6)]


def test_an_evaluation_with_a_killed_node_writes_the_bytes_of_a_single_process(
    cluster: Any, second: Any, executor: RayExecutor, tmp_path: Path
) -> None:
    chat = Scenario.make(workload="chat", topology="1P2D", rate=20, duration_s=300, warmup_s=5)
    policies, seeds = ("round-robin", "marginal-cost"), range(100, 106)

    def kill(done: int, total: int) -> None:
        if done == 3 and second in cluster.list_all_nodes():
            cluster.remove_node(second, allow_graceful=False)

    evaluate(chat, policies, seeds, out=tmp_path / "one", workers=1, records="all")
    evaluate(chat, policies, seeds, out=tmp_path / "two", workers=executor, records="all", on_run=kill)
    assert second not in cluster.list_all_nodes()
    assert content(tmp_path / "one") == content(tmp_path / "two")


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_an_interrupt_ends_the_runs_in_progress(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), RayExecutor(address=cluster.address) as executor:
        results = executor.run(node_of, [(tmp_path, k) for k in range(3)])
        assert next(results)[0] == 0
        wait_until(lambda: bool(begun(tmp_path, cluster.head_node)))
        raise KeyboardInterrupt
    pids = [pid for _, pid in begun(tmp_path, cluster.head_node)]
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_a_worker_has_one_thread_and_the_folder_of_the_command(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").touch()
    monkeypatch.chdir(tmp_path)
    with RayExecutor(address=cluster.address) as executor:
        assert list(executor.run(os.getenv, ["OMP_NUM_THREADS"])) == ["1"]
        assert list(executor.run(os.listdir, ["."])) == [["here"]]


def test_a_node_with_another_version_is_refused_in_one_sentence(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ray_worker.installation()
    monkeypatch.setattr(ray_worker, "installation", lambda: own | {"disaggroute": "9.9", "code": "0123456789abcdef"})
    sentence = (
        rf"^the node \S+ of the Ray cluster at {cluster.address} has disaggroute {own['disaggroute']} and not 9.9, "
        rf"code {own['code']} and not 0123456789abcdef; install the same version of disaggroute on every node$"
    )
    with pytest.raises(ValueError, match=sentence), RayExecutor(address=cluster.address) as executor:
        list(executor.run(abs, [1, 2]))


def test_a_node_without_the_package_is_refused_in_one_sentence(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "WORKER", "a_package_that_is_not_there")
    sentence = r"^the node \S+ of the .* has no disaggroute of this version \(No module named 'a_package"
    with pytest.raises(ValueError, match=sentence), RayExecutor(address=cluster.address) as executor:
        list(executor.run(abs, [1, 2]))


def test_a_limit_on_a_larger_cluster_is_kept(cluster: Any) -> None:
    executor = RayExecutor(3, cluster.address)
    assert (executor.count, executor.most_under_way) == (3, 3)


def test_a_cluster_without_a_cpu_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        """Ray, connected to a cluster that has lost all of its nodes."""

        def wait(self, handles: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
            return [], handles

        def cluster_resources(self) -> dict[str, float]:
            return {}

        def cancel(self, *_: Any, **__: Any) -> None:
            pass

    monkeypatch.setattr(ray, "IDLE_S", 0.0)
    executor = RayExecutor()
    executor._ray, executor._call = Empty(), lambda payload, _: payload
    with pytest.raises(RuntimeError, match="the Ray cluster has had no CPU for 0 s; the same command goes on"):
        list(executor.run(abs, [1, 2]))


@pytest.mark.parametrize("address", ["here", "here:", ":6379", "here:none", "here:70000", "ray://here:10001", "a/b:1"])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=rf"^ray_address is {address}; it must be HOST:PORT of the head of a Ray"):
        make_executor("ray", ray_address=address)


def test_an_address_where_nothing_listens_is_told_in_one_sentence() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=rf"^ray_address is {address}, where nothing answers \(connec"):
            make_executor("ray", ray_address=address)


def test_an_address_that_is_no_clusters_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "ANSWER_S", 3.0)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        executor = make_executor("ray", ray_address=address)
        with pytest.raises(ConnectionError, match=rf"^ray_address is {address}, where no Ray cluster answers wit"):
            list(executor.run(abs, [1, 2]))


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"the library ray is not installed; `pip install 'disaggroute\[scale\]'`"):
        make_executor("ray")
