"""Ports of sessions through the server: what a request names, who may, and the way there and back.

A form of address is added in `addresses.py`; what it shares with the API's own origin, its place in `application.py`
says. A program's answer is hostile until `heads.py` and `bodies.py` have read it."""
