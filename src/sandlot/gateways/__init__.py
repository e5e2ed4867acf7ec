"""Our sessions under the interfaces of others. One folder each: schema is what is asked, translate what is told."""
