"""Everything a pipeline needs, running: the servers, the deployments, the Prefect worker."""

import os
from pathlib import Path

from flows import stack
from flows.stack import Addresses, Say


def start(home: Path, *, free_ports: bool, say: Say) -> Addresses:
    """Start the stack, register the deployments in it, start the worker; what runs already is left as it is.

    Sets the stack's variables in this process: from here on Prefect and the registry find it.

    Raises:
        StackError: a server did not start, or Prefect refused a deployment.
    """
    addresses = stack.up(home, free_ports=free_ports, say=say)
    os.environ.update(stack.variables(home, addresses))
    from flows import deployments, settling  # Prefect reads its settings when it is imported: only now are they right

    deployments.register(stack.inherited(home, addresses))
    stack.start_worker(home, addresses, before=lambda: settling.settle(worker_lives=False), say=say)
    return addresses
