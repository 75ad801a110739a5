"""The commands of the command line, a file each: how to ask for what the package does."""
