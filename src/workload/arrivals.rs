//! When the I/Os of an open load are due.

use super::spec::Workload;
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoroshiro128PlusPlus;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Sets the stream of arrivals apart from that of offsets.
const SALT: u64 = 0x6172_7269_7661_6c73;

/// How the I/Os of an open load arrive. The names are fio's (`rate_process`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RateProcess {
    /// At equal distances.
    #[default]
    Linear,
    /// At random, each independent of those before: exponential gaps, as of many users.
    Poisson,
}

impl RateProcess {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Poisson => "poisson",
        }
    }
}

impl fmt::Display for RateProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A process that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no way to arrive; use linear or poisson")]
pub struct UnknownRateProcess(String);

impl FromStr for RateProcess {
    type Err = UnknownRateProcess;

    fn from_str(text: &str) -> Result<Self, UnknownRateProcess> {
        let known =
            [Self::Linear, Self::Poisson].into_iter().find(|process| process.name() == text);
        known.ok_or_else(|| UnknownRateProcess(text.to_owned()))
    }
}

/// One worker's arrivals.
#[derive(Clone, Debug)]
pub struct Arrivals {
    process: RateProcess,
    mean_s: f64,
    rng: Xoroshiro128PlusPlus,
}

impl Arrivals {
    /// Of the worker with number `stream` among all; `None` where the load is not open. The same seed
    /// gives the same arrivals.
    pub fn new(workload: &Workload, stream: u32) -> Option<Self> {
        let rate = workload.rate_iops?;
        let mut rng = Xoroshiro128PlusPlus::seed_from_u64(workload.seed ^ SALT);
        for _ in 0..stream {
            rng.jump();
        }
        Some(Self { process: workload.rate_process, mean_s: 1.0 / f64::from(rate.max(1)), rng })
    }

    /// Seconds from one I/O to the next.
    #[inline]
    pub fn gap_s(&mut self) -> f64 {
        match self.process {
            RateProcess::Linear => self.mean_s,
            // 53 bits, above 0 and at most 1: the logarithm is finite.
            RateProcess::Poisson => {
                let uniform = ((self.rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                -uniform.ln() * self.mean_s
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Rw;

    fn gaps(process: RateProcess, seed: u64, stream: u32) -> Vec<f64> {
        let workload = Workload {
            rate_iops: Some(1000),
            rate_process: process,
            seed,
            ..Workload::new(Rw::RandRead, 4096, 1)
        };
        let mut arrivals = Arrivals::new(&workload, stream).unwrap();
        (0..100_000).map(|_| arrivals.gap_s()).collect()
    }

    #[test]
    fn equal_distances() {
        assert!(gaps(RateProcess::Linear, 1, 0).iter().all(|gap| *gap == 0.001));
    }

    /// Against the exponential distribution: mean, deviation, and the parts beyond 1, 2 and 3 means.
    #[test]
    fn exponential_gaps() {
        let gaps = gaps(RateProcess::Poisson, 1, 0);
        let n = gaps.len() as f64;
        let mean = gaps.iter().sum::<f64>() / n;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / n).sqrt();
        assert!((mean / 0.001 - 1.0).abs() < 0.02, "{mean}");
        assert!((deviation / 0.001 - 1.0).abs() < 0.03, "{deviation}");
        for means in 1..=3 {
            let beyond = gaps.iter().filter(|gap| **gap > f64::from(means) * 0.001).count() as f64;
            let expected = (-f64::from(means)).exp();
            assert!((beyond / n - expected).abs() < 0.006, "{means}: {}", beyond / n);
        }
        assert!(gaps.iter().all(|gap| gap.is_finite() && *gap >= 0.0));
    }

    #[test]
    fn the_seed_decides_and_no_two_workers_share() {
        let poisson = |seed, stream| gaps(RateProcess::Poisson, seed, stream);
        assert_eq!(poisson(1, 0), poisson(1, 0));
        assert_ne!(poisson(1, 0), poisson(2, 0));
        assert_ne!(poisson(1, 0), poisson(1, 1));
    }

    #[test]
    fn names_go_both_ways() {
        for process in [RateProcess::Linear, RateProcess::Poisson] {
            assert_eq!(process.name().parse(), Ok(process));
        }
        let message = "steady".parse::<RateProcess>().unwrap_err().to_string();
        assert_eq!(message, "\"steady\" is no way to arrive; use linear or poisson");
    }
}
