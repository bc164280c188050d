"""An agent plays a live cluster: episodes in real time."""
