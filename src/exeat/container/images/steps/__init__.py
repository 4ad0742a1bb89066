"""What runs inside a build, with the base image's own Python. Nothing of exeat can be imported there."""
