"""Fuzz targets for every parser of untrusted bytes, and the programs that run them (docs/internals/fuzzing.md)."""
