"""The command line of containers: options of a run, and images."""
