"""Policies: programs for a task graph and a device, and the choice between them."""
