"""Fuzz targets for every parser of foreign bytes, and what runs them (docs/internals/fuzzing.md)."""
