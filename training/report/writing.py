"""The report, written into its results folder."""

from __future__ import annotations

from pathlib import Path

from ..results import Results
from ..runs import write_atomically
from .figures import FIGURES, draw_figures
from .material import gather
from .page import page

PAGE = "report.html"


def write_report(results: Results) -> list[Path]:
    """Draws the figures of an evaluation and writes them and the page into its folder.

    Figures that need records are left out where none were kept; what an earlier report left of them is removed.

    Returns:
        The files, the page last.

    Raises:
        ValueError: stored records are unreadable.
        OSError: a file cannot be written.
    """
    material = gather(results)
    images = draw_figures(material)
    remove_report(results.folder.path, keep=set(images))
    written = [results.folder.path / f"{name}.png" for name in images]
    for path, image in zip(written, images.values(), strict=True):
        write_atomically(path, image)
    target = results.folder.path / PAGE
    write_atomically(target, page(material, images).encode())
    return [*written, target]


def remove_report(folder: Path, keep: set[str] | None = None) -> None:
    """Removes what an earlier report left in a folder: it would show other runs than the summary.

    Args:
        folder: results folder.
        keep: names of figures that stay; the page then stays too.

    Raises:
        OSError: a file cannot be removed.
    """
    for kind in FIGURES:
        if keep is None or kind.name not in keep:
            (folder / f"{kind.name}.png").unlink(missing_ok=True)
    if keep is None:
        (folder / PAGE).unlink(missing_ok=True)
