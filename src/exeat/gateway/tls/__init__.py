"""TLS of our own, towards clients and servers."""
