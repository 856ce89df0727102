"""What `gpu_check.py` does on a machine with a GPU: install, prove, measure, write it down.

The modules that `gpu_check.py` itself imports need nothing but Python; the parts run in processes
of their own (`gpu_checks.work`), in which bringup is importable.
"""
