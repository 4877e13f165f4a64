"""reference → trace: boot under the tracers, bring the logs home whole, parse them (pure)."""
