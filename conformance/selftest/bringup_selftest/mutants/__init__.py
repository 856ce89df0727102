"""Small mistakes planted in a backend's own code, one at a time, and what of a run finds them."""
