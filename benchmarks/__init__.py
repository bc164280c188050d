"""How fast the simulator and the environments are: what `disaggroute bench` measures."""
