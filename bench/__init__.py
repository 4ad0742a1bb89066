"""Measures exeat and its peers as forward proxies, over loopback, in one run."""
