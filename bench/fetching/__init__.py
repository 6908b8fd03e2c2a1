"""Programs that fetch weights, damaged on purpose."""
