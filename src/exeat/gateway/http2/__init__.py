"""HTTP/2, as channels that the HTTP/1 core reads."""
