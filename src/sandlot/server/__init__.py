"""What serves an ASGI application to others: sockets, connections and their bounds, health, metrics, logs, traces.

Which host is behind the application is for others to say. Nothing here is imported by `import sandlot`."""
