"""Does the simulator tell the truth? Live runs replayed in it, request by request (docs/truth.md)."""
