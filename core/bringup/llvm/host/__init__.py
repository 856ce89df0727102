"""LLVM IR compiled for this machine, kept on disk and loaded: for backends that run on the host,
and for emulators of others.
"""
