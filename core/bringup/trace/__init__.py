"""From Python functions to graphs: pytrees, traces, deferred expressions, reverse-mode
derivatives.
"""
