"""What is checked: data, shapes, instructions and random programs."""
