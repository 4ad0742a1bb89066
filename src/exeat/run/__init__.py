"""`exeat run`: a command in a jail, and a gateway that decides what it reaches."""
