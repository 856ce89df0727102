"""The corpus, a module for each group; each has a tuple ``FAULTS``."""
