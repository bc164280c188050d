"""A whole training: one run for each training seed, one after the other, and the choice among all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from ..compilation import compile_all
from ..evaluation import OnRun
from ..executors.choice import executor_of
from ..executors.executor import Executor
from ..runs import ResultsFolder, fingerprint
from .choose import Choice, Entrant, choose
from .config import TrainingConfig
from .methods import method
from .picture import draw_learning
from .run import OnProgress, TrainingRun

Bar = Callable[[str, str], AbstractContextManager[OnProgress]]
"""Opens a progress bar: what is going on, and what is counted."""


def default_folder(config: TrainingConfig) -> Path:
    """`results/train-<name>-<key>`: another configuration gets another folder."""
    name = re.sub(r"[^\w.-]+", "-", config.name)
    return Path("results") / f"train-{name}-{fingerprint(config.content())[:6]}"


def train(
    config: TrainingConfig,
    seeds: Sequence[int],
    *,
    out: Path | None = None,
    command: str = "",
    workers: int | Executor | None = None,
    bar: Bar | None = None,
    say: Callable[[str], None] | None = None,
) -> Choice:
    """Trains with every training seed, then chooses on validation seeds; goes on from what the folder holds.

    Each training seed has a folder `seed-N` inside (`run.py` says what lies there); `choose` says what is beside them.

    Args:
        config: what to train.
        seeds: training seeds; more of them go on from fewer.
        out: folder; by default `default_folder(config)`.
        command: the command that does it all again, for the card.
        workers: processes, None for one per core; or an executor, which is used and kept.
        bar: opens progress bars.
        say: told what takes its time.

    Raises:
        ValueError: bad configuration, a folder of another one, or a damaged checkpoint.
        OSError: the folder cannot be written.
    """
    config.check()
    say, bar = say or (lambda _: None), bar or (lambda *_: nullcontext(_silent))
    content = config.content()
    folder = ResultsFolder.open(out or default_folder(config), content)
    compile_all(say)
    entrants: list[Entrant] = []
    with executor_of(workers) as pool:
        for seed in seeds:
            entrants += _train_one(config, content, folder.path / f"seed-{seed}", seed, pool, bar, say)
        with bar("validating", "runs") as tell:
            told: OnRun = tell
            return choose(
                config, folder, entrants, seeds, command=command, workers=pool, on_run=told, say=say
            )


def _train_one(
    config: TrainingConfig,
    content: dict[str, object],
    path: Path,
    seed: int,
    pool: Executor,
    bar: Bar,
    say: Callable[[str], None],
) -> list[Entrant]:
    module = method(config.method)
    with bar(f"training seed {seed}", module.UNIT) as tell:
        run = TrainingRun.open(path, content, seed, workers=pool, say=say, on_progress=tell)
        files = run.finish(module.train(config, run))
    draw_learning(run.curve, f"{config.name}, training seed {seed}", module.UNIT, path / "learning.png")
    return [Entrant.of(seed, found, config.policy.name, file) for found, file in files.items()]


def _silent(done: int, total: int) -> None:
    pass
