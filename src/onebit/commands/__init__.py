"""The commands of the `onebit` program, one file a topic."""
