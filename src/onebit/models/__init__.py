"""Model files: reading what they are, and fetching them."""
