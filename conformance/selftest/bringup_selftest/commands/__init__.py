"""Commands that `conformance` has where this distribution is installed."""
