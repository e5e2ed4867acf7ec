"""The files of a session, point by point, on their way: to another storage, into one file, and out of it.

A point travels as what changed since the one that it grew from: `entries.py` says what one change is, `finding.py`
finds them between two points, `applying.py` puts them onto a volume, `writing.py` and `reading.py` are the form in a
file.
"""
