"""exeat inside another program: a configuration in, commands run in a sandbox out."""
