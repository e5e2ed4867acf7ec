"""How an orchestrator makes and ends sandboxes and launches processes in them, one file per place where they are."""
