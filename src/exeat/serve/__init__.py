"""`exeat serve`: the gateway as a process of its own, next to the code that it watches."""
