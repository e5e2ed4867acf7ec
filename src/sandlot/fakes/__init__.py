"""In-memory implementations of contracts: they keep every promise that needs no machine, and are under the same suites.

To add one: a file named for the contract, and the suite of `src/sandlot/conformance/` that holds it."""
