"""Running cases on a device, level by level."""
