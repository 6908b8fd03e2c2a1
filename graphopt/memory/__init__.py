"""Memory of a model: tensors and lifetimes, the order of nodes, recomputation, tiles, and writing what was planned."""
