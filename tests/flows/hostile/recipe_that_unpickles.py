"""A recipe that unpickles when it is imported: none of its rows is ever asked for."""

import os
import pickle

from recipes.wine import *  # noqa: F403

pickle.loads(b"cos\nmkdir\n(V" + f"{os.environ['TREERING_HOME']}/marker".encode() + b"\ntR.")  # noqa: S301
