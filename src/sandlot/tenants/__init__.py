"""Who may ask a server, and what they see: keys, and a host as one tenant has it."""
