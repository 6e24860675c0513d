"""The papers' linear representation experiments and their methods, in NumPy.

* `problem`: the ground truth, the clients' samples, new clients.
* `model`: the two-layer linear model, its gradients, least squares, starts.
* `methods`: the work of clients and server, one function for each method.
* `simulation`: cohorts, rounds, their records, and scores.
* `theorem`: the theorems' rate, compared with the measured rate.

All numbers are float64, and clients are the first axis of an array.

References, by the names in the modules:
  FedRep: Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared
  Representations for Personalized Federated Learning, ICML 2021.
  FedAvg: Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local
  Updates Lead to Representation Learning, NeurIPS 2022.
  FedDAR: Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023.
"""
