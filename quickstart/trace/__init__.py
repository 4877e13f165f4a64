"""reference → trace: boot under the tracers, bring the complete logs home, parse them (pure)."""
