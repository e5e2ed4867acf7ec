"""Ports of sessions through the server: what a request names, who may, and the way there and back.

A form of address is added to the table in `forms.py`; what those that share the API's own origin may, `application.py`
says. A program's answer is hostile until `heads.py` and `bodies.py` have read it."""
