"""Templates: each turns a problem and a candidate (tile sizes, layout) into a kernel."""
