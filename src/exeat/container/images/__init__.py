"""How the image of a sandbox is made."""
