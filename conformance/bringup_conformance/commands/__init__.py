"""The commands of ``conformance``."""
