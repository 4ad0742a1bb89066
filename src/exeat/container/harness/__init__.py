"""What runs inside a pool's container (`harness.py`, one file that is copied into the image) and the client for it."""
