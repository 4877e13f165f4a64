"""Trace and image root become the start set, and the recipe of the archive."""
