"""A small continuous-batching engine: what batchscope observes, and it knows nothing of that.

Read engine.py first; scheduler, policies, blocks and the cost model import without torch.
"""
