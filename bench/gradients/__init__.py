"""Gradients and training steps beside torch: an oracle of its own, and the measures that hold ours to it."""
