"""Programs and pure task graphs from the command line: `python -m scheduler solve|check`. JSON on standard output."""
