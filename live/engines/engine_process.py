"""vLLM's server, run by the engines' own Python so that none of its processes outlives the one that started it.

The server starts a process for its core, and that one a process for its worker. When one of them is killed, those
below it go on for ever, with their memory and ports. Here each asks the kernel to be killed with its parent: children
that start afresh run this file again (under another name), children that are copies run the hook.

Takes the id of the process that starts it, then vLLM's own arguments. With `detached` in place of the id the first
process outlives the one that started it; those below still end with it.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


first = __name__ == "__main__"
starter = sys.argv.pop(1) if first else ""

if starter != "detached":
    die_with_parent()
os.register_at_fork(after_in_child=die_with_parent)

if first:
    if starter != "detached" and os.getppid() != int(starter):
        sys.exit("the process that started this engine has ended")
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
