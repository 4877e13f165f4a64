"""The content-addressed store, and what is kept in it."""
