"""The loops of the simulator, one launch at a time, over arrays."""
