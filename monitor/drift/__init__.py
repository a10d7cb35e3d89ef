"""Drift of safety scores between model versions: evidence that stays valid however often one looks.

The fold makes a ``TracePart`` of each closed trace and adds it to a ``DeltaAccumulator``; ``DriftEngine`` takes
the resulting ``ScoreDelta`` records in, over two tables of bytes, and says ``DriftReport``, ``MixReport`` and
``GateState``. A safety score grows with danger: 0 is safe, 1 violates the policy.
"""
