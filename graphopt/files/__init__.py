"""Writing files so that a kill, a full disk or a fault at any moment leaves what was there, or what is new, whole."""
