"""Write disk images, find the blocks of files in them, and make the kernel's command lines."""
