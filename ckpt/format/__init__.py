"""What a checkpoint is, as values, and the rules and bytes of it: the format without any file.

``manifest`` is what a checkpoint states, of ``records`` of tensors and storages and the nodes of a nested ``state``;
``rules`` (with those of pieces, states and adopted headers) are checked before anything it says is used; ``wire`` turns
values into canonical bytes and back; ``shards`` says which storage lies where; ``digests`` hashes.
"""
