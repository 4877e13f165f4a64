"""Write disk images. Pure plans decide what is written."""
