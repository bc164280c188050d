"""The real cluster: two-leg protocol, router, engines, emulator, calibration."""
