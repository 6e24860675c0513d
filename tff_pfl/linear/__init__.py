"""The papers' linear representation experiments and their methods.

* `problem`: the ground truth, the clients' samples, new clients.
* `model`: the two-layer linear model and its gradients.
* `methods`: what clients and server do, one function for each paper's method.
* `rounds`: a round's two halves, for `simulation` (all clients as one program)
  and `federated` (TFF computations) alike.
* `initialization`: first models.
* `new_client`: errors of a client that did not train.
"""
