"""Programs as WebAssembly: in a web page and in node."""
