"""What a newcomer meets, beside the best that other tools offer: 54 rows, checked by scripts or judged by hand."""
