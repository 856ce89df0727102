"""``conformance bench``: how near a device comes to what its memory and its arithmetic allow."""
