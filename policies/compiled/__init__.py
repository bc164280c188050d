"""Policies in compiled form: the functions that pick instances, and the episode loop that runs them."""
