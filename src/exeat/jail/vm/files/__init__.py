"""A guest's files: an image, what is written over it, and folders of the machine in it."""
