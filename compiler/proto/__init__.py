"""The protobuf schema of a program (``program.proto``) and the code generated from it. Never edited by hand."""
