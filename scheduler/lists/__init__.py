"""Tasks with precedence on identical workers: list scheduling, local search, and proofs for small graphs."""
