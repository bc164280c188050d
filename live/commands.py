"""`disaggroute live`: the router in front of engines, real or emulated."""

from __future__ import annotations

import typer

from .calibration.commands import calibrate
from .emulator.commands import emulate_engine
from .engines import commands as engine_commands
from .gate.commands import gate
from .serve_commands import serve
from .up import commands as up_commands

app = typer.Typer(no_args_is_help=True, help="Engines, real or emulated: start, gate, calibrate, route, compare.")
app.command()(serve)
app.command("engine")(emulate_engine)
app.command()(gate)
app.command()(calibrate)
engine_commands.register(app)
up_commands.register(app)
