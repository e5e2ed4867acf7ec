"""The SDK: `AsyncSandbox` is written by hand, `Sandbox` is generated from it (`make gen`)."""
