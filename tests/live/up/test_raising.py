"""`up` and `down`: engines outlive the one that started them, and nothing is left that `down` does not find."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from disaggroute.__main__ import app
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.engines.ports import free_port, is_free
from disaggroute.live.engines.signs_of_life import is_healthy
from disaggroute.live.running import running
from disaggroute.live.up import commands, processes, raising, state
from disaggroute.live.up.lost import end_lost, lost
from disaggroute.live.up.processes import look, marks
from disaggroute.live.up.raising import down, up
from disaggroute.live.up.standing import standing, standings
from disaggroute.live.up.state import State, StateFolder, started, state_root

from .pretended import launch_of, of_launch, pretended, quiet, until, written

NAME = "pretended"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateFolder]:
    monkeypatch.setenv("DISAGGROUTE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(processes, "FOLLOW_S", 0.1)
    yield StateFolder(NAME)
    down(NAME)


def state_of(folder: StateFolder) -> State:
    state = folder.read()
    assert state is not None
    return state


def pids(folder: StateFolder) -> list[int | None]:
    """Ids of the engines' first processes; None for one that has ended."""
    state = state_of(folder)
    first = (folder.first_process(engine) for engine in state.engines)
    return [process.pid if process else None for process in first]


def test_engines_are_up_when_they_answer_and_gone_after_down(tmp_path: Path, folder: StateFolder) -> None:
    told: list[tuple[str, str]] = []
    file = pretended(tmp_path, launch={"environment": {"DOES": "child"}})
    cluster = up(file, "c.yaml", lambda *what: told.append(what))
    assert cluster == LiveCluster.load(folder.cluster_file) == running(tmp_path / "cluster.yaml")
    assert [(role, cluster.engine_name(role, k)) for role, k, _ in cluster.engines()] == [
        ("prefill", "prefill/0"),
        ("decode", "decode/0"),
    ]
    assert all(is_healthy(entry.address[1]) for _, _, entry in cluster.engines())
    assert told[:2] == [("prefill/0", "starting"), ("decode/0", "starting")]
    assert sorted(told[2:]) == [("decode/0", "ready"), ("prefill/0", "ready")]
    launch = launch_of(NAME)
    assert len(of_launch(launch)) == 4  # each with its child
    assert down(NAME) == 2
    assert not of_launch(launch)
    assert down(NAME) == 0  # a second time is no error


def test_each_engine_has_a_session_of_its_own_and_a_log(tmp_path: Path, folder: StateFolder) -> None:
    up(pretended(tmp_path), "c.yaml", quiet)
    state = state_of(folder)
    for engine in state.engines:
        process = folder.first_process(engine)
        assert process is not None and process.session == process.pid != os.getsid(0)
        assert folder.log(engine).read_text() == "listening\n"


def test_a_second_time_only_what_has_died_is_started_where_it_was(tmp_path: Path, folder: StateFolder) -> None:
    file = pretended(tmp_path)
    cluster = up(file, "c.yaml", quiet)
    prefill, decode = pids(folder)
    assert prefill is not None and decode is not None
    told: list[tuple[str, str]] = []
    assert up(file, "c.yaml", lambda *what: told.append(what)) == cluster
    assert pids(folder) == [prefill, decode] and "starting" not in {what for _, what in told}
    os.kill(decode, signal.SIGKILL)
    until(lambda: pids(folder)[1] is None, "its end")
    assert not standing(file).well and [engine.well for engine in standing(file).engines] == [True, False]
    assert up(file, "c.yaml", lambda *what: told.append(what)) == cluster
    assert [name for name, what in told if what == "starting"] == ["decode/0"]
    now = pids(folder)
    assert now[0] == prefill and now[1] not in (None, decode)
    assert folder.log(state_of(folder).engines[1]).read_text() == "listening\n" * 2
    assert standing(file).well


def test_what_is_left_of_a_dead_engine_is_ended_before_it_is_started_again(
    tmp_path: Path, folder: StateFolder
) -> None:
    file = pretended(tmp_path, launch={"environment": {"DOES": "child"}})
    up(file, "c.yaml", quiet)
    before = {process.pid for process in of_launch(launch_of(NAME))}
    first = pids(folder)
    assert first[0] is not None
    os.kill(first[0], signal.SIGKILL)
    until(lambda: pids(folder)[0] is None, "its end")
    up(file, "c.yaml", quiet)
    after = {process.pid for process in of_launch(launch_of(NAME))}
    assert len(before) == len(after) == 4 and len(before & after) == 2


def test_an_engine_of_which_something_is_left_counts_as_ended_by_down(tmp_path: Path, folder: StateFolder) -> None:
    up(pretended(tmp_path, launch={"environment": {"DOES": "child"}}), "c.yaml", quiet)
    launch, first = launch_of(NAME), pids(folder)[0]
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: pids(folder)[0] is None, "its end")
    assert down(NAME) == 2 and not of_launch(launch)


def test_a_cluster_goes_down_by_its_name_beside_a_state_that_cannot_be_read(
    tmp_path: Path, folder: StateFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    up(pretended(tmp_path), "c.yaml", quiet)
    broken = folder.path.with_name("another")
    broken.mkdir()
    (broken / "state.json").write_text("{")
    commands.down(NAME)
    assert capsys.readouterr().out == "pretended is down; 2 engines ended\n"


def test_an_engine_that_ignores_the_request_to_end_is_killed(
    tmp_path: Path, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raising, "DOWN_S", 0.1)
    up(pretended(tmp_path, launch={"environment": {"DOES": "stubborn"}}), "c.yaml", quiet)
    launch = launch_of(NAME)
    assert down(NAME) == 2 and not of_launch(launch)


@pytest.mark.parametrize(
    ("does", "limit", "sentence"),
    [
        ("broken", 60, r"decode/0 ended before it was ready \(ValueError: the block size is odd\); its log is LOG"),
        ("mute", 0.5, r"decode/0 does not answer after 0\.5 s \(loading\); its log is LOG"),
        ("ill", 0.5, r"decode/0 does not answer after 0\.5 s \(listening\); its log is LOG"),
    ],
)
def test_if_one_engine_cannot_start_all_are_taken_down_and_its_log_says_why(
    tmp_path: Path, folder: StateFolder, does: str, limit: float, sentence: str
) -> None:
    file = pretended(tmp_path, decode=[{"environment": {"DOES": does}}])
    seen: list[str] = []

    def tell(name: str, what: str) -> None:
        seen.append(launch_of(NAME))

    with pytest.raises(RuntimeError, match=sentence.replace("LOG", str(folder.path / "decode-0.log"))):
        up(file, "c.yaml", tell, limit)
    assert not of_launch(seen[0])
    assert folder.read() is None and (folder.path / "decode-0.log").exists()


def test_an_engine_that_has_ended_is_not_ready_whoever_answers_at_its_port(
    tmp_path: Path, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def answers(port: int) -> bool:
        """Somebody else does, once the engine has ended."""
        engine = next(engine for engine in state_of(folder).engines if engine.port == port)
        if engine.role == "decode":
            until(lambda: folder.first_process(engine) is None, "its end")
        asked.append(port)
        return asked.count(port) > 1

    monkeypatch.setattr(raising, "is_healthy", answers)
    with pytest.raises(RuntimeError, match="decode/0 ended before it was ready"):
        up(pretended(tmp_path, decode=[{"environment": {"DOES": "broken"}}]), "c.yaml", quiet)


def test_if_a_restart_fails_the_engines_that_ran_go_on(tmp_path: Path, folder: StateFolder) -> None:
    switch = tmp_path / "switch"
    switch.touch()
    file = pretended(tmp_path)
    script = tmp_path / "engine-python"
    script.write_text(script.read_text().replace("print(\"listening\"", f"open({str(switch)!r}); print(\"listening\""))
    up(file, "c.yaml", quiet)
    prefill, decode = pids(folder)
    assert decode is not None
    switch.unlink()
    os.kill(decode, signal.SIGKILL)
    until(lambda: pids(folder)[1] is None, "its end")
    with pytest.raises(RuntimeError, match="decode/0 ended before it was ready \\(FileNotFoundError"):
        up(file, "c.yaml", quiet)
    assert pids(folder) == [prefill, None]


@pytest.mark.parametrize("moment", ["state.json", "prefill-0.pid", "decode-0.pid"])
@pytest.mark.parametrize("noted", [True, False], ids=["noted", "not noted"])
def test_whenever_up_is_killed_down_leaves_nothing(
    tmp_path: Path, folder: StateFolder, moment: str, noted: bool
) -> None:
    file = written(tmp_path, launch={"environment": {"DOES": "mute child"}})
    words = [sys.executable, "-m", "disaggroute", "live", "up", str(file)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as starting:
        until(lambda: (folder.path / moment).exists(), moment)
        starting.kill()
    launch = launch_of(NAME)
    if not noted:  # found by the mark alone
        with folder.alone():  # whatever was begun has noted itself
            begun = [look(int(pid.read_text().split()[0])) for pid in folder.path.glob("*.pid")]
        for process in filter(None, begun):
            until(lambda process=process: marks(process) or not process.runs(), "the mark")
        for pid in folder.path.glob("*.pid"):
            pid.unlink()
    if moment != "state.json":
        until(lambda: of_launch(launch), "an engine")
    down(NAME)
    assert not of_launch(launch) and folder.read() is None


def test_an_engine_is_noted_before_the_lock_is_free_though_up_was_killed(
    tmp_path: Path, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, slow = tmp_path / "go", f"while ! [ -e {tmp_path / 'go'} ]; do sleep 0.01; done; {raising.WRITE_DOWN}"
    file = written(tmp_path, launch={"environment": {"DOES": "mute"}})
    code = "from disaggroute.live.up import raising; from disaggroute.live.launch_file import read; "
    code += f"raising.WRITE_DOWN = {slow!r}; raising.up(read({str(file)!r}), 'c.yaml', lambda *_: None)"
    with subprocess.Popen([sys.executable, "-c", code]) as starting:
        until(lambda: folder.read() and of_launch(launch_of(NAME)), "a shell")
        starting.kill()
    launch = launch_of(NAME)
    monkeypatch.setattr(state, "LOCK_S", 0.1)
    with pytest.raises(RuntimeError, match="another `live up` or `live down` of it runs"):
        down(NAME)
    go.touch()
    monkeypatch.setattr(state, "LOCK_S", 60.0)
    assert down(NAME) == 1 and not of_launch(launch)


def test_after_a_killed_up_another_one_goes_on(tmp_path: Path, folder: StateFolder) -> None:
    file = pretended(tmp_path)
    up(file, "c.yaml", quiet)
    prefill, decode = pids(folder)
    assert decode is not None
    os.kill(decode, signal.SIGKILL)
    folder.pid_file(state_of(folder).engines[1]).unlink()
    up(file, "c.yaml", quiet)
    assert pids(folder)[0] == prefill and pids(folder)[1] not in (None, decode)


def test_a_pid_that_another_process_has_by_now_is_left_alone(tmp_path: Path, folder: StateFolder) -> None:
    up(pretended(tmp_path), "c.yaml", quiet)
    engine = state_of(folder).engines[0]
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as stranger:
        fields = folder.pid_file(engine).read_text().split()
        started = fields[21]
        folder.pid_file(engine).write_text(" ".join([str(stranger.pid), *fields[1:]]) + "\n")
        assert int(started) > 0 and folder.first_process(engine) is None
        down(NAME)
        assert stranger.poll() is None
        stranger.kill()


def test_two_at_a_time_are_refused(
    tmp_path: Path, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "LOCK_S", 0.0)
    folder.path.mkdir(parents=True)
    with (folder.path / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sentence = "pretended: another `live up` or `live down` of it runs; wait for it"
        with pytest.raises(RuntimeError, match=sentence):
            up(pretended(tmp_path), "c.yaml", quiet)
        with pytest.raises(RuntimeError, match=sentence):
            down(NAME)


def test_a_file_that_has_changed_is_refused_until_it_is_down(tmp_path: Path) -> None:
    up(pretended(tmp_path), "c.yaml", quiet)
    changed = pretended(tmp_path, decode=2)
    with pytest.raises(ValueError, match=r"^c\.yaml has changed since `live up`; run `disaggroute live down pret"):
        up(changed, "c.yaml", quiet)
    said = r"cluster\.yaml does not say what pretended was started from, which is c\.yaml; run `disagg"
    with pytest.raises(ValueError, match=said):
        running(tmp_path / "cluster.yaml")
    assert not standing(changed).well and "has changed since `live up`" in standing(changed).complaint
    down(NAME)
    assert len(up(changed, "c.yaml", quiet).decode) == 2


def test_a_file_that_has_changed_while_nothing_ran_is_started_as_it_is(tmp_path: Path, folder: StateFolder) -> None:
    up(pretended(tmp_path), "c.yaml", quiet)
    for pid in pids(folder):
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    until(lambda: pids(folder) == [None, None], "their end")
    assert len(up(pretended(tmp_path, decode=2), "c.yaml", quiet).decode) == 2


def test_a_process_that_was_about_to_become_an_engine_when_it_went_down_becomes_none(tmp_path: Path) -> None:
    words = ["/bin/sh", "-c", raising.WRITE_DOWN, str(tmp_path / "prefill-0.pid"), "touch", str(tmp_path / "engine")]
    subprocess.run(words)
    assert not (tmp_path / "engine").exists()
    (tmp_path / "state.json").touch()
    subprocess.run(words)
    assert (tmp_path / "engine").exists() and (tmp_path / "prefill-0.pid").exists()


def test_one_that_notes_itself_while_down_runs_is_ended(
    tmp_path: Path, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(pretended(tmp_path), "c.yaml", quiet)
    launch, end, looks = launch_of(NAME), raising._end, iter([False])

    def late(*arguments: Any) -> None:
        if next(looks, True):
            end(*arguments)

    monkeypatch.setattr(raising, "_end", late)
    down(NAME)
    assert not of_launch(launch)


def test_a_port_that_is_not_free_at_once_after_a_kill_is_waited_for(
    tmp_path: Path, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, asked = pretended(tmp_path), []
    up(file, "c.yaml", quiet)
    decode = pids(folder)[1]
    assert decode is not None
    os.kill(decode, signal.SIGKILL)
    until(lambda: pids(folder)[1] is None, "its end")

    def free(port: int) -> bool:
        asked.append(port)
        return len(asked) > 3 and is_free(port)

    monkeypatch.setattr(raising, "is_free", free)
    up(file, "c.yaml", quiet)
    assert asked[:4] == [asked[0]] * 4


def test_a_port_that_somebody_has_taken_meanwhile_is_named(
    tmp_path: Path, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = pretended(tmp_path)
    up(file, "c.yaml", quiet)
    engine = state_of(folder).engines[1]
    decode = pids(folder)[1]
    assert decode is not None
    os.kill(decode, signal.SIGKILL)
    until(lambda: pids(folder)[1] is None, "its end")
    until(lambda: is_free(engine.port), "its port")
    monkeypatch.setattr(raising, "FREE_S", 0.1)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", engine.port))
        taken.listen()
        sentence = f"the port of decode/0 is {engine.port}, which is taken; end what listens there"
        with pytest.raises(ValueError, match=sentence):
            up(file, "c.yaml", quiet)


@pytest.fixture
def lost_engines(tmp_path: Path) -> Iterator[State]:
    """Engines that run and whose state was removed; no other test's have their name."""
    name = f"lost-{uuid4().hex[:8]}"
    up(pretended(tmp_path, name=name, launch={"port": free_port()}), "c.yaml", quiet)
    state = state_of(StateFolder(name))
    shutil.rmtree(StateFolder(name).path)
    yield state
    end_lost(name)


def test_engines_whose_state_was_removed_are_told_and_can_be_ended(lost_engines: State) -> None:
    name = lost_engines.name
    pids = [each.process.pid for each in lost(name)]
    assert len(pids) == 2
    for words in (["status"], ["down", name]):
        done = CliRunner().invoke(app, ["live", *words])
        engines = f"prefill-0 (pid {pids[0]}), decode-0 (pid {pids[1]}) of {name}"
        assert f"not written down here, but running: {engines}; where `live up` was given" in done.stderr, words
        assert f"`disaggroute live down {name} --lost`" in done.stderr
    assert len(of_launch(lost_engines.launch)) == 2
    done = CliRunner().invoke(app, ["live", "down", name, "--lost"])
    assert done.exit_code == 0 and done.stdout == f"{name} is down; 2 engines ended\n" and done.stderr == ""
    assert not of_launch(lost_engines.launch)


def test_a_port_that_a_lost_engine_has_is_named_with_the_way_out(tmp_path: Path, lost_engines: State) -> None:
    name, port = lost_engines.name, lost_engines.engines[0].port
    pid = lost(name)[0].process.pid
    sentence = (
        rf"the port of prefill/0 is {port}, which is taken; it is prefill-0 of {name} \(pid {pid}\), which is not "
        rf"written down here; `disaggroute live down {name} --lost` ends it, or give another"
    )
    with pytest.raises(ValueError, match=sentence):
        up(pretended(tmp_path, name=name, launch={"port": port}), "c.yaml", quiet)


def test_engines_that_are_written_down_are_not_lost(tmp_path: Path) -> None:
    name = f"kept-{uuid4().hex[:8]}"
    up(pretended(tmp_path, name=name), "c.yaml", quiet)
    try:
        assert lost(name) == [] and end_lost(name) == 0 and len(of_launch(launch_of(name))) == 2
    finally:
        down(name)


def test_an_interrupted_up_takes_down_what_it_has_started(tmp_path: Path, folder: StateFolder) -> None:
    launches: list[Any] = []

    def interrupt(name: str, what: str) -> None:
        if what == "ready" and not launches:
            launches.append(launch_of(NAME))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        up(pretended(tmp_path), "c.yaml", interrupt)
    assert not of_launch(launches[0]) and folder.read() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_asked_to_end_takes_down_what_it_has_started(
    tmp_path: Path, folder: StateFolder, number: signal.Signals
) -> None:
    file = written(tmp_path, launch={"environment": {"DOES": "mute"}})
    words = [sys.executable, "-m", "disaggroute", "live", "up", str(file)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as starting:
        until(lambda: (folder.path / "decode-0.pid").exists(), "the last engine")
        launch = launch_of(NAME)
        starting.send_signal(number)
        _, said = starting.communicate()
    assert starting.returncode == 1 and said.endswith("disaggroute: interrupted\n")
    assert not of_launch(launch) and folder.read() is None


# --- where it is looked for -----------------------------------------------------------------------------------------


def test_a_cluster_that_is_not_up_is_refused_with_what_to_do(tmp_path: Path, folder: StateFolder) -> None:
    file = written(tmp_path)
    sentence = f"^{file} is not up; run `disaggroute live up {file}` first$"
    with pytest.raises(ValueError, match=sentence):
        running(file)
    up(pretended(tmp_path), str(file), quiet)
    for pid in pids(folder):
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    until(lambda: pids(folder) == [None, None], "their end")
    with pytest.raises(ValueError, match=sentence):
        running(file)


def test_a_cluster_with_addresses_runs_wherever_it_does(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: m\nprofile: a40-qwen2.5-3b\nmixed: [{url: 'http://127.0.0.1:1'}]\n")
    assert running(file) == LiveCluster.load(file)
    assert [(engine.name, engine.well) for engine in standing(running(file)).engines] == [("mixed/0", False)]


def test_another_clusters_state_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    up(pretended(tmp_path, name="a b"), "c.yaml", quiet)
    try:
        with pytest.raises(ValueError, match=r"a-b is the state of the cluster a b; give a/b another name"):
            up(pretended(tmp_path, name="a/b"), "c.yaml", quiet)
    finally:
        down("a b")


def test_a_state_that_cannot_be_read_is_named(tmp_path: Path, folder: StateFolder) -> None:
    folder.path.mkdir(parents=True)
    (folder.path / "state.json").write_text('{"name": 5')
    with pytest.raises(ValueError, match=r"state\.json is no state of this version; end its engines by hand"):
        up(pretended(tmp_path), "c.yaml", quiet)
    (folder.path / "state.json").unlink()


@pytest.mark.parametrize("text", ["", "model: m\nprofile: a40-qwen2.5-3b\nmixed: [{url: 'http://127.0.0.1:1'}]\n"])
def test_a_cluster_that_cannot_be_read_is_named_with_the_way_out(
    tmp_path: Path, folder: StateFolder, text: str
) -> None:
    file = pretended(tmp_path)
    up(file, "c.yaml", quiet)
    folder.cluster_file.write_text(text)
    for ask in (lambda: up(file, "c.yaml", quiet), lambda: standing(file), lambda: running(tmp_path / "cluster.yaml")):
        with pytest.raises(ValueError, match=r"; `disaggroute live down pretended` and `live up` write it anew$"):
            ask()
    down(NAME)
    up(file, "c.yaml", quiet)
    assert standing(file).well


def test_a_working_folder_that_was_removed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISAGGROUTE_STATE")
    gone = tmp_path / "gone"
    gone.mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(gone)
        gone.rmdir()
        with pytest.raises(ValueError, match="the folder in which this runs was removed; go to another one, or set "):
            state_root()
    monkeypatch.setenv("DISAGGROUTE_STATE", str(tmp_path / "state"))


def test_a_state_that_cannot_be_read_hides_no_other_cluster(tmp_path: Path, folder: StateFolder) -> None:
    up(pretended(tmp_path), "c.yaml", quiet)
    broken = StateFolder("broken")
    broken.path.mkdir(parents=True)
    (broken.path / "state.json").write_text('{"nam')
    assert started() == ["broken", NAME]
    ill, well = standings()
    assert not ill.well and ill.complaint.endswith("end its engines by hand, and remove it") and well.well
    done = CliRunner().invoke(app, ["live", "down", NAME])
    assert done.output == "pretended is down; 2 engines ended\n"


def test_a_note_of_a_process_that_is_no_text_is_a_process_that_nobody_knows(
    tmp_path: Path, folder: StateFolder
) -> None:
    up(pretended(tmp_path), "c.yaml", quiet)
    launch = launch_of(NAME)
    folder.pid_file(state_of(folder).engines[0]).write_bytes(b"\xff\xfe\n")
    assert pids(folder)[0] is None
    down(NAME)
    assert not of_launch(launch)


def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    file = written(tmp_path, name="[/q]", decode=[{"name": "[/red] [bold]x"}])
    try:
        done = CliRunner().invoke(app, ["live", "up", str(file)])
        assert done.exit_code == 0 and "[/red] [bold]x ready" in done.output
        done = CliRunner().invoke(app, ["live", "status"])
        assert done.exit_code == 0 and "[/q]" in done.output and "[/red] [bold]x" in done.output
    finally:
        down("[/q]")


def test_an_engine_that_has_ended_is_not_ready_because_somebody_else_answers_at_its_port(
    tmp_path: Path, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(port: int) -> bool:
        engine = state_of(folder).engines[1]
        until(lambda: port != engine.port or folder.first_process(engine) is None, "its end")
        return True

    monkeypatch.setattr(raising, "is_healthy", answered)
    file = pretended(tmp_path, decode=[{"environment": {"DOES": "broken"}}])
    with pytest.raises(RuntimeError, match=r"decode/0 ended before it was ready \(ValueError: the block size is odd"):
        up(file, "c.yaml", quiet)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        *[("a b/c", "a-b-c"), ("..", "live"), (".hidden", "hidden"), ("é", "é")],
        ("漢" * 100, "漢" * 66),  # three bytes each
    ],
)
def test_a_folder_is_named_like_its_cluster_as_far_as_it_can(name: str, found: str, tmp_path: Path) -> None:
    assert StateFolder(name, tmp_path).path == tmp_path / found
