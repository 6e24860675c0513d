"""The process and the federated round that every algorithm is built on."""
