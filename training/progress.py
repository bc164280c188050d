"""The progress bar of runs."""

from ..envs.progress import run_progress as run_progress
