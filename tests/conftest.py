"""Settings every test shares: no network look-ups at import, one thread per numeric library."""

import os
import signal

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as below nohup: the processes that tests interrupt inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
