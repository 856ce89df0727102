"""NVIDIA GPUs for bringup: the plugin and the capabilities of each architecture."""
