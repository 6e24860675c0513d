"""The papers' linear representation experiments and their methods.

* `problem`: the ground truth, the clients' samples, new clients.
* `domain_problem`: the same where clients mix domains (FedDAR).
* `model`: the two-layer linear model, its gradients, least squares.
* `methods`: what clients and server do, one function for each paper's method.
* `domain_methods`: those that have heads, or models, for domains.
* `initialization`: first models.
* `simulation`: all clients and rounds as one program.
* `convergence`: how fast a run came close to the ground truth.
* `scoring`: errors of clients that trained, and of new ones.
"""
