"""Measure launches. The modules define clocks and launch patterns, measure single runs, and compute statistics of
runs.
"""
