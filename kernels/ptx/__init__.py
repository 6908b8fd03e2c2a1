"""PTX through LLVM: persistent programs as text, emitted and assembled. Launching them is somebody else's business."""
