"""The use cases: a request in, a record out. The Python interface and the commands are these functions."""
