"""LLVM IR as text: the builder every rendering backend shares, and the math it inlines.

Nothing here imports LLVM: text goes to whatever LLVM the backend carries.
"""
