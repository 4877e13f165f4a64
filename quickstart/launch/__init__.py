"""Start guests, on a backend that implements guest.Launcher."""
