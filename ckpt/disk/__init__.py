"""Files and folders: read as a reader may trust them, written so that they appear whole or not at all."""
