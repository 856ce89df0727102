"""A backend for bringup to copy and edit; its hardware is `bringup_simulator`."""
