"""An estimator of scikit-learn that moves points from one cloud to another."""

from drainsinkhorn.apps.estimator import EntropicTransport as EntropicTransport
