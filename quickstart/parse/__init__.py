"""Bytes and documents of strangers, read within limits and shown without harm."""
