"""Programs: a graph becomes regions, regions a task graph and a listing with planned memory, a listing what runs."""
