"""Programs for microcontrollers: a static library, its header, and an example."""
