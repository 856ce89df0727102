"""The op `sort` as native functions: sorting networks, and merges of their blocks."""
