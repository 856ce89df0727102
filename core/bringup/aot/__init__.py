"""Ahead of time: programs as libraries that need neither Python nor this package.

A library has an object file or a C source, a header for C, and a few lines for C++ and Rust.
"""

from bringup.aot.library import Library, make_library

__all__ = ["Library", "make_library"]
