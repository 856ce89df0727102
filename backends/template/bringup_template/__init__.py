"""A bringup backend to copy and edit; its hardware is the simulator in this package."""
