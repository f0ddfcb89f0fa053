"""Recording a training loop without torch: any Python program can write a run.

    pip install trimtab   (needs NumPy, not torch)
    python numpy_loop.py

A linear model is trained by gradient descent in plain NumPy. In step 200 a broken batch makes the
loss jump; the observer sees it while the loop runs.
"""

import numpy as np

import trimtab

rng = np.random.default_rng(0)
true_weights, weights = rng.normal(size=16), np.zeros(16)
loss = 0.0

with trimtab.record("runs/numpy", facts={"model": "linear", "num_parameters": 16}) as run:
    for step in range(300):
        inputs = rng.normal(size=(64, 16))
        targets = inputs @ true_weights + rng.normal(size=64)
        if step == 200:
            targets = targets * 100
        errors = inputs @ weights - targets
        loss = float(np.mean(errors**2))
        gradient = 2 * inputs.T @ errors / len(errors)
        weights -= 0.02 * gradient
        run.log(step=step, loss=loss, grad_norm=np.linalg.norm(gradient), lr=0.02, tokens=64)

print(f"last loss {loss:.3f}")
print("now: trimtab diagnose runs/numpy")
