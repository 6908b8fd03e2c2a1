"""Networks of images: convolutions, pooling and what lies between them, stored as their kernels like it."""
