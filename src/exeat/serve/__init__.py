"""`exeat serve`: the gateway as a process of its own, beside the code that it watches."""
