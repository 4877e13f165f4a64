"""profile → reference: the ordinary root file system and kernel, which are booted, traced and later shipped."""
