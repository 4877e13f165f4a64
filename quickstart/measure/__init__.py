"""launch → measurement: clocks, one run → Measurement, statistics, report."""
