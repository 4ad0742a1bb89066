"""What runs around the command, inside: builder and init."""
