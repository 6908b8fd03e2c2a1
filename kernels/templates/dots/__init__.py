"""Templates that compute with dot products of pairs of bfloat16, on processors without matrix units."""
