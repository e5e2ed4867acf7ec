"""In-memory implementations of the contracts, for tests of whoever builds on them. Each is held to the same suite as
the real ones; where it differs, its module says so under DEVIATIONS, by the name of the check that it does not keep.

To add one: a module here, whose class has the verbs of the contract; a run of the contract's suite in
`tests/conformance`; a line in `docs/guides/testing.md` that says what it leaves out.
"""
