"""Pure problems from the command line: `python -m memplan pack|remat|tiers`. JSON on standard output."""
