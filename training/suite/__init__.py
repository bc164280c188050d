"""How good is a policy over all? Scenarios with fixed seeds and one score: `disaggroute experiment suite`."""
