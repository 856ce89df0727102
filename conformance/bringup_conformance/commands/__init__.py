"""The commands of ``conformance``, a module each."""
