"""What this machine can do, measured once and kept: the numbers that plans of programs are made with."""
