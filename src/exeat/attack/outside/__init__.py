"""What lies outside a jail, for a probe to want: opened for the time of an attack."""
