"""A real engine beside a model of it: every answer and every error is foretold."""
