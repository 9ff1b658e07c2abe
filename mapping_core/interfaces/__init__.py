"""What a plugin's `build` returns: one contract a kind, one file a contract.

`mapper`, `generator`, `modulation` and `loss` are torch modules; `phase_policy`,
`dynamics` and `callback` are plain classes whose files import no torch.
"""
