"""A backend of API level 1, at each depth: numpy on memory of the host."""
