"""Writes scipy.json: values that the tests of stats.rs are held against, computed by SciPy.

Run by hand, where SciPy is installed, when a case is added: python3 make_scipy.py > scipy.json
"""

import json

import numpy as np
import scipy
from scipy import stats

SAMPLES = [
    [100.0, 101.0],
    [512300.0, 511800.0, 513100.0],
    [83.1, 83.4, 82.9, 99.7, 83.0],
    [1.0, 1.0, 1.0, 1.0],
    [9.5e-3, 1.02e-2, 9.9e-3, 9.7e-3, 1.01e-2, 9.8e-3, 1.0e-2],
    [float(n * n % 97) for n in range(1, 31)],
]

PAIRS = [
    ([110.0, 121.0, 99.0], [100.0, 110.0, 90.0]),
    ([101.0, 99.0, 100.5, 99.5, 100.0], [100.0, 100.0, 100.0, 100.0, 100.0]),
    ([203.0, 197.0], [100.0, 101.0]),
    ([51.0, 49.5, 50.2, 50.9], [99.0, 101.0, 100.0, 102.0]),
    ([1.021e6, 1.019e6, 1.022e6, 1.018e6, 1.020e6, 1.021e6],
     [1.000e6, 0.999e6, 1.001e6, 0.998e6, 1.000e6, 1.002e6]),
]

# Two runs of their own: as many rounds or not, as spread or not.
RUNS = [
    ([110.0, 121.0, 99.0], [100.0, 110.0, 90.0]),
    ([512300.0, 511800.0, 513100.0, 512000.0], [498000.0, 505000.0]),
    ([1.021e6, 1.019e6, 1.022e6, 1.018e6, 1.020e6], [1.000e6, 0.930e6, 1.071e6]),
    ([100.0, 101.0], [99.0, 103.0, 101.0, 100.5, 100.2, 99.7]),
    ([83.1, 83.4, 82.9, 99.7, 83.0], [41.0, 41.1, 41.05, 41.02]),
]

ROUNDS = [
    [100.0, 101.0, 102.0, 150.0],
    [100.0, 101.0, 99.5, 100.2],
    [100.0, 100.01, 99.99, 100.5],
    [100.0, 100.0, 100.0, 97.0, 100.0],
    [512300.0, 511800.0, 513100.0, 300000.0, 512000.0, 512500.0],
    [100.0, 150.0, 100.0],
]


def interval(samples):
    """Mean, and its two-sided 95 % interval by Student's t."""
    samples = np.array(samples)
    mean, error = samples.mean(), stats.sem(samples)
    low, high = stats.t.interval(0.95, len(samples) - 1, loc=mean, scale=error)
    # With no spread SciPy says nan; the interval is then the mean itself.
    return (mean, mean, mean) if error == 0 else (mean, low, high)


def mean_case(samples):
    mean, low, high = interval(samples)
    return {"samples": samples, "mean": mean, "low": low, "high": high}


def ratio_case(ours, base):
    logs = np.log(np.array(ours) / np.array(base))
    mean, low, high = np.exp(interval(logs))
    # The same interval by another way: the paired test of the logarithms.
    test = stats.ttest_rel(np.log(ours), np.log(base)).confidence_interval(0.95)
    assert np.allclose([low, high], np.exp([test.low, test.high]))
    freedom = len(ours) - 1
    t = stats.t.ppf(0.975, freedom) + stats.t.ppf(0.8, freedom)
    least = np.exp(t * stats.sem(logs)) - 1
    return {"ours": ours, "base": base, "mean": mean, "low": low, "high": high, "least": least}


def independent_case(ours, base):
    logs = np.log(ours), np.log(base)
    test = stats.ttest_ind(*logs, equal_var=False)
    low, high = np.exp(test.confidence_interval(0.95))
    error = np.hypot(stats.sem(logs[0]), stats.sem(logs[1]))
    least = np.exp((stats.t.ppf(0.975, test.df) + stats.t.ppf(0.8, test.df)) * error) - 1
    mean = stats.gmean(ours) / stats.gmean(base)
    return {"ours": ours, "base": base, "mean": mean, "low": low, "high": high, "least": least}


def outlier_case(samples):
    middle = np.median(samples)
    distance = np.abs(np.array(samples) - middle)
    # SciPy's scale "normal" turns the median distance into standard deviations.
    deviation = stats.median_abs_deviation(samples, scale="normal")
    outside = (distance > 3.5 * deviation) & (distance > 0.01 * middle)
    return {"samples": samples, "outside": [bool(far) and len(samples) >= 4 for far in outside]}


freedoms = list(range(1, 31)) + [40, 60, 100, 1000]
print(json.dumps({
    "scipy": scipy.__version__,
    "quantiles": [
        {"freedom": n, "p975": stats.t.ppf(0.975, n), "p80": stats.t.ppf(0.8, n)}
        for n in freedoms
    ],
    "means": [mean_case(samples) for samples in SAMPLES],
    "ratios": [ratio_case(ours, base) for ours, base in PAIRS],
    "independent": [independent_case(ours, base) for ours, base in RUNS],
    "outliers": [outlier_case(samples) for samples in ROUNDS],
}, indent=1))
