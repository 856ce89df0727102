"""The conformance suite of bringup: checks any backend against numpy."""
