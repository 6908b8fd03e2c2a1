"""Programs within a budget of the process: weights beyond it are read while the program runs."""
