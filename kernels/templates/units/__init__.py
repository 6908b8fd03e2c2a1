"""Kernels on matrix units: products and convolutions of float32 that are rounded to bfloat16, with sums of float32.

`rounding` makes tiles of rows, `product` and `product_choice` are those of matrix products, `image` and `image_choice`
those of convolutions.
"""
