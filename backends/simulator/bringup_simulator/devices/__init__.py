"""The accelerator as devices of bringup, at each depth at which a device can take work."""
