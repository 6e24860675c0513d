"""The papers' linear representation experiments and their methods, in NumPy.

* `problem`: the ground truth, the clients' samples, new clients.
* `model`: the two-layer linear model, its gradients, least squares, starts.
* `methods`: what clients and server do, one function for each paper's method.
* `simulation`: cohorts, rounds, what is recorded of them, and scores.
* `theorem`: the rate that is promised, beside the one that was measured.

All numbers are float64, and the first axis of an array is that of the clients.

References, by the names that the modules use:
  FedRep: Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared
  Representations for Personalized Federated Learning, ICML 2021.
  FedAvg: Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local
  Updates Lead to Representation Learning, NeurIPS 2022.
  FedDAR: Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023.
"""
