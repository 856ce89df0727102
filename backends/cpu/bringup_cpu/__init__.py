"""The reference CPU backend of bringup."""
