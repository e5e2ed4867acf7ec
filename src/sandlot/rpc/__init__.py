"""The wire: a server around a host, and a client that is one. Nothing here is imported by `import sandlot`."""
