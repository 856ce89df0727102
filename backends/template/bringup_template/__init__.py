"""Template as a device of bringup."""
