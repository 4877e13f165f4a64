"""Measure launches: clocks, launch patterns, measurements of single runs, and statistics."""
