"""From programs to LLVM IR for NVPTX, and to the commands that launch it."""
