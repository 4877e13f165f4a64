"""One verb a module; the only place that turns an error into an exit code."""
