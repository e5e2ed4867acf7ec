"""Programs that run code in a session, one per language: each is given to an interpreter of the session, needs nothing
but that, and speaks what `sandlot.host.code_frames` reads.

To add a language: its program here, a row in `sandlot.host.code_languages`, its name in `sandlot.model.code`, and its
row in the suite of `sandlot.conformance.code`."""
