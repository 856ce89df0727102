"""The seam to a GPU: the driver's functions as protocols, the real driver, and its errors."""
