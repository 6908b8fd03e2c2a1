"""`python -m bench.mutants`."""

import typer

from bench.mutants.sweep import main

if __name__ == "__main__":
    typer.run(main)
