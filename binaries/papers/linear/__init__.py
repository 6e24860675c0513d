"""The papers' linear representation experiments and their methods.

* `problem`: the ground truth, the clients' samples, new clients.
* `domain_problem`: the same where clients mix domains (FedDAR).
* `model`: the two-layer linear model and its gradients.
* `methods`: what clients and server do, one function for each paper's method.
* `domain_methods`: those that have heads, or models, for domains.
* `rounds`: the clients' and the server's part of a phase.
* `simulation`: all clients and rounds as one program.
* `initialization`: first models.
* `client_errors`: errors of the clients that trained, on test samples.
* `new_client`: errors of a client that did not train.
"""
