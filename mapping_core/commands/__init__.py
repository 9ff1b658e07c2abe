"""The commands of `mapping`, one file a command, each imported only when it is used."""
