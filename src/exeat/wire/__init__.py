"""First bytes, as values: HTTP/1 heads and bodies, TLS ClientHello, SOCKS5. Pure: bytes in, values out."""
