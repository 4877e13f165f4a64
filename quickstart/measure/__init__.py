"""Measure launches. The modules have clocks, launch patterns, measurements of single runs, and statistics."""
