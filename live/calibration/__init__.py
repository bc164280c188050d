"""Calibration: a profile of engines from measurements on them."""
