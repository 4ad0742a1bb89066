"""Docker and Podman, by the one API that both speak. Knows nothing else of exeat."""
