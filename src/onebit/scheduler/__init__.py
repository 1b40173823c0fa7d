"""Which slot on which engine a request gets, and who waits for one."""
