"""Private computers for agents: started in milliseconds, kept over every turn, and walled in."""

__version__ = "0.1.0"
__all__ = ["__version__"]
