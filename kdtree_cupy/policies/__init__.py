"""Tree policies."""
