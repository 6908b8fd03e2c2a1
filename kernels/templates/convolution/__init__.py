"""Convolution of float32 images, in every order of dims, with any kernel, strides, dilations, pads and groups.

`problem` and `layout` say what is computed and how it is stored; `ways` lists the candidates, likeliest first, and
builds any of them: `direct` (with `choose`, `steps`, `tile`, `stage`, `planar`), `winograd` and `depthwise`.
"""
