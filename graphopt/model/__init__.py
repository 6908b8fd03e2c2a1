"""Models: loading, saving, the signature, and what is known of every value."""
