"""The suite tests itself: faults planted in a right device, and what finds them."""
