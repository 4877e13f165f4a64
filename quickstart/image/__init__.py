"""Write disk images. What is written is decided by pure functions."""
