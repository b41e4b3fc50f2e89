"""The engine worker's half: the standardized tree over the real modules, and the blocks that run on it."""
