"""Bring a new device up: trace, fuse, compile and check array programs on it."""
