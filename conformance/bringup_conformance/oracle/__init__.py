"""What is right: reference values with derived bounds, and the special cells."""
