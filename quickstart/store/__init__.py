"""The content-addressed store of the results of builds, and functions for its entries."""
