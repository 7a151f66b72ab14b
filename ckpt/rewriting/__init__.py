"""The same checkpoint in other files: cut into other shards, or pieces of several writers made whole."""
