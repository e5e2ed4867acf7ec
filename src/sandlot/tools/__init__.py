"""What a model calls: a catalogue, and the two tiers that do the work.

`direct/` has the tools whose work the host does itself, through the verbs of files, which are confined. `contained/`
has those that run a program in the session. Neither knows the engine: verbs of the waist are all that they use.
"""
