"""Docker and Podman for tests: engines of the tests' own, which share nothing with those of the machine."""
