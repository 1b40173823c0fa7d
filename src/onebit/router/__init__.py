"""The HTTP side: reading requests, relaying answers, telling the state."""
