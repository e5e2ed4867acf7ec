"""Events, told to addresses that an operator names: signed, at least once, and to nobody inside."""
