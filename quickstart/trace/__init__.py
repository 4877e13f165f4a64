"""reference → trace: boot under the tracers, copy the complete logs to the host, and parse them (pure)."""
