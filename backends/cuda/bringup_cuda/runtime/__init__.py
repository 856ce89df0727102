"""Opened devices: memory, streams, transfers, and programs that run."""
