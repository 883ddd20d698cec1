"""The transformer follows scikit-learn's conventions, and maps as POT's does."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import drainsinkhorn as ds
from drainsinkhorn.sklearn import EntropicTransport
from tests.conftest import needs

RNG = np.random.default_rng(0)
XS, XT = RNG.normal(size=(30, 3)), RNG.normal(size=(35, 3)) * 0.5 + 1
NEW = RNG.normal(size=(8, 3))


class TowardsShifted(EntropicTransport):
    """Derives the target from X, since scikit-learn's checks call `fit` with X and labels alone."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        super().fit(X, X, sample_weight=sample_weight, target_weight=sample_weight)
        return super().fit(X, self.xt_ + 1, sample_weight=sample_weight, target_weight=sample_weight)


@parametrize_with_checks([TowardsShifted(eps=10.0)])
def test_scikit_learn_accepts_the_transformer(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("weighted", [False, True])
def test_transform_is_the_map_of_pot(weighted: bool) -> None:
    ot = needs("ot")
    model = EntropicTransport(eps=0.5, tol=1e-9)
    a, b = (RNG.dirichlet(np.ones(n)) if weighted else None for n in (30, 35))
    model.fit(XS, XT, sample_weight=a, target_weight=b)
    plan = ot.solve_sample(XS, XT, a, b, reg=0.5, tol=1e-13).plan
    np.testing.assert_allclose(model.coupling_, plan, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(model.transform(XS), plan @ XT / plan.sum(1)[:, None], rtol=1e-6)
    np.testing.assert_allclose(model.inverse_transform(XT), plan.T @ XS / plan.sum(0)[:, None], rtol=1e-6, atol=1e-9)
    if not weighted:
        theirs = ot.da.SinkhornTransport(reg_e=0.5, tol=1e-13, out_of_sample_map="continuous").fit(Xs=XS, Xt=XT)
        np.testing.assert_allclose(model.transform(NEW), theirs.transform(NEW), rtol=1e-6)
        np.testing.assert_allclose(model.inverse_transform(NEW), theirs.inverse_transform(Xt=NEW), rtol=1e-6, atol=1e-9)
    assert model.status_ == "CONVERGED"
    assert model.n_iter_ > 0


def test_the_default_eps_is_a_share_of_the_mean_cost() -> None:
    costs = ((XS[:, None] - XT[None]) ** 2).sum(-1)
    assert np.isclose(EntropicTransport().fit(XS, XT).eps_, 0.05 * costs.mean())
    euclidean = EntropicTransport(cost=ds.Cost("euclidean", 2.0)).fit(XS, XT)
    assert np.isclose(euclidean.eps_, 0.1 * np.sqrt(costs).mean())
    assert EntropicTransport().fit(XS[:1], XS[:1]).transform(XS[:1]).tolist() == XS[:1].tolist()


def test_the_target_is_the_second_argument_or_xt() -> None:
    labels = RNG.integers(0, 2, 30)
    first = EntropicTransport().fit(XS, XT)
    second = EntropicTransport().fit(XS, labels, Xt=XT)
    np.testing.assert_array_equal(first.transform(NEW), second.transform(NEW))
    np.testing.assert_array_equal(EntropicTransport().fit_transform(XS, XT), first.transform(XS))
    for target, message in ((None, "target points are missing"), (labels, "missing"), (XT[:, :2], "2 features")):
        with pytest.raises(ds.ProblemError, match=message):
            EntropicTransport().fit(XS, target)
    with pytest.raises(ds.ProblemError, match="eps"):
        EntropicTransport(eps=-1.0).fit(XS, XT)


def test_it_is_a_step_of_a_pipeline() -> None:
    labels = (XS[:, 0] > 0).astype(int)
    pipeline = make_pipeline(StandardScaler(), EntropicTransport(), LogisticRegression())
    pipeline.fit(XS, labels, entropictransport__Xt=XT)
    assert pipeline.score(XS, labels) > 0.8
    assert clone(pipeline[1]).get_params() == EntropicTransport().get_params()
    assert list(pipeline[:2].get_feature_names_out(["u", "v", "w"])) == ["u", "v", "w"]


def test_a_fitted_transformer_pickles() -> None:
    model = EntropicTransport().fit(XS.astype(np.float32), XT)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(NEW), model.transform(NEW))
    np.testing.assert_array_equal(again.coupling_, model.coupling_)
    assert model.transform(NEW.astype(np.float32)).dtype == np.float32
