"""How fast the simulator is: what `disaggroute bench` measures."""
