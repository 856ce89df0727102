"""From Python functions to graphs: pytrees, traces, deferred expressions, derivatives."""
