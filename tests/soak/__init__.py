"""Engines that are killed at named places, again and again; and what the next one makes of it."""
