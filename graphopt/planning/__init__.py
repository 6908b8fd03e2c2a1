"""Planning: regions in order become a listing whose buffers have places in one arena and one file of weights."""
