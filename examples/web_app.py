"""A web app in a sandbox: served, fetched from outside, changed while it runs, started again.

    python examples/web_app.py

Nothing but Sandlot is needed: it works in a data directory of its own.
"""

from urllib.request import urlopen

from sandlot import Sandbox

with Sandbox.create() as sandbox:
    sandbox.files.write("index.html", "<h1>first</h1>")
    server = sandbox.processes.launch("python3 -m http.server 8000", name="web", port=8000)  # ready when this returns
    print(urlopen(server.url()).read().decode())

    changes = sandbox.files.watch(".")  # what happens in its workspace, as it happens
    sandbox.commands.run("echo '<h1>second</h1>' > index.html")
    print("changed:", next(change.path for change in changes if change.path.endswith("index.html")))
    print(urlopen(server.url()).read().decode().strip())

    server.kill()
    again = sandbox.processes.launch("python3 -m http.server 8000", name="web", port=8000)
    print(urlopen(again.url()).status, len(sandbox.processes.list()), "processes, one of them alive")
    again.kill()
print("stopped, and nothing is left")
