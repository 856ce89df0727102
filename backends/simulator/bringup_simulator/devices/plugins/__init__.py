"""One module for each entry point, which is the first thing of ours that bringup imports."""
