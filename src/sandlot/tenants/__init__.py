"""Who may ask a server, and what they see: keys, tokens, and a host as one tenant has it."""
