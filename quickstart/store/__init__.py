"""The content-addressed store, and functions for its entries."""
