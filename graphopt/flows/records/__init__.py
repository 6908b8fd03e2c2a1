"""What use cases give and `--json` prints: frozen records, each with the name and version of its schema."""
