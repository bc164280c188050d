"""Real engines: vLLM with NIXL, installed, given a tiny model, and started."""
