"""A device that renders plain C: this machine's compiler makes code of it, and its memory runs it.

It proves the C renderer of core on real compilers, and shows how little such a device takes.
"""
