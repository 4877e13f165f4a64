"""Turn a trace and an image root into the start set, and into the recipe of the archive."""
