"""The suite tests itself: faults injected into a right device, and what finds them."""
