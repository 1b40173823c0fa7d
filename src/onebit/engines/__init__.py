"""Engine processes: finding and compiling builds, starting, watching, stopping."""
