//! Layers, losses, optimizers and the model zoo as graph builders.
