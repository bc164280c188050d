"""A live cluster by its name or file, with the addresses of its engines, whoever has started them."""

from __future__ import annotations

from pathlib import Path

from . import launch_file
from .cluster_file import LiveCluster
from .engines.ports import HOST
from .up.state import StateFolder, definition


def running(name_or_path: str | Path) -> LiveCluster:
    """The cluster that a router or a measurement is pointed at.

    One with addresses is as its file says it; whether its engines answer is not asked. Of one with a `launch` section
    the addresses are those that `disaggroute live up` has written down.

    Args:
        name_or_path: a name from `catalog.names("live")`, or a path that ends in .yaml.

    Raises:
        ValueError: as `LiveCluster.load` has it; or the cluster has a `launch` section and is not up, or was started
            before the file changed.
    """
    file = launch_file.read(name_or_path)
    if isinstance(file, LiveCluster):
        return file
    folder = StateFolder(file.name)
    state = folder.read()
    if state is None or len(folder.ended(state)) == len(state.engines):
        raise ValueError(f"{name_or_path} is not up; run `disaggroute live up {name_or_path}` first")
    if state.definition != definition(file):
        how = f"run `disaggroute live down {file.name}` and `live up {name_or_path}`"
        raise ValueError(f"{state.differs(str(name_or_path))}; {how}")
    return folder.cluster(state)


def way_out(cluster: LiveCluster) -> str:
    """What to do about engines of a cluster that `live up` has started and that have ended; nothing if there are none.

    Whatever file the cluster was read from: its engines are those of a launch where its name and addresses are.
    """
    try:
        folder = StateFolder(cluster.name)
        state = folder.read()
    except ValueError:
        return ""
    if state is None:
        return ""
    urls = {entry.url for _, _, entry in cluster.engines()}
    ours = [engine.name for engine in state.engines if f"http://{HOST}:{engine.port}" in urls]
    return state.way_out([name for name in folder.ended(state) if name in ours])


def with_way_out(text: str, cluster: LiveCluster) -> str:
    """A complaint about engines that do not answer, and what to do about those that have ended."""
    return "; ".join(filter(None, (text, way_out(cluster))))
