"""Making failures small, and finding what is guilty."""
