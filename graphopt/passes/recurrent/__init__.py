"""Recurrent networks that an exporter has unrolled: cells are recognised, and a chain of them becomes one operator."""
