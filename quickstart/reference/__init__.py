"""profile → reference: the ordinary root file system and kernel that is booted, traced and later shipped."""
