"""What of the study's findings holds in simulation, and on what that depends: `disaggroute experiment`."""
