"""Ahead of time: programs as files that need no Python source.

`library`: an object file or a C source, with a header for C and a few lines for other languages.
`program_file`: graphs for any device.  A process that reads the one does not import the other.
"""
