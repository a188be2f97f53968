//! Where random I/O goes, if not everywhere alike.
//!
//! A skew is by rank: the first block is the hottest. `zipf` and `pareto` scatter their ranks over the
//! range, so that hot blocks are no neighbours; the zones of `zoned` and the middle of `normal` stay
//! where they are. Each draw takes constant time, whatever the number of blocks.

use super::split::weighted;
use super::units::{format_size, parse_size};
use rand_core::RngCore;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use statrs::distribution::{ContinuousCDF, Normal};
use std::fmt;
use std::str::FromStr;

/// Parameters are kept in millionths, so that equal ones are equal.
const ONE: u32 = 1_000_000;

/// Most tries of a draw by rejection; each succeeds nine times out of ten at least.
const TRIES_MAX: u32 = 64;

/// How random offsets are drawn. Names and parameters are fio's (`random_distribution`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// Every block alike.
    #[default]
    Random,
    /// The k-th hottest block comes up as often as k to the power of minus this (in millionths).
    Zipf(u32),
    /// Self-similar: this part of the blocks (in millionths) gets what is left of the I/Os.
    Pareto(u32),
    /// Around the middle of the range, with a standard deviation of this part of it (in millionths).
    Normal(u32),
    /// Zones in order: percent of the range, percent of the I/Os.
    Zoned(Vec<(u8, u8)>),
    /// Zones in order: bytes, percent of the I/Os. What lies behind the last gets none.
    ZonedAbs(Vec<(u64, u8)>),
}

/// A distribution that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is no distribution: {why}; use random, zipf:THETA (as zipf:1.2), pareto:PART (as pareto:0.2), normal:PERCENT (as normal:10) zoned:IOS/SIZE:… (as zoned:80/20:20/80) or zoned_abs:IOS/BYTES:… (as zoned_abs:80/1g:20/9g)"
)]
pub struct BadDistribution {
    text: String,
    why: String,
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |millionths: u32| f64::from(millionths) / f64::from(ONE);
        let text = match self {
            Self::Random => "random".to_owned(),
            Self::Zipf(theta) => format!("zipf:{}", part(*theta)),
            Self::Pareto(h) => format!("pareto:{}", part(*h)),
            Self::Normal(deviation) => format!("normal:{}", f64::from(*deviation) / 1e4),
            Self::Zoned(zones) => {
                let zones = zones.iter().map(|(size, ios)| format!("{ios}/{size}"));
                format!("zoned:{}", zones.collect::<Vec<_>>().join(":"))
            }
            Self::ZonedAbs(zones) => {
                let zones =
                    zones.iter().map(|(bytes, ios)| format!("{ios}/{}", format_size(*bytes)));
                format!("zoned_abs:{}", zones.collect::<Vec<_>>().join(":"))
            }
        };
        f.pad(&text)
    }
}

impl FromStr for Distribution {
    type Err = BadDistribution;

    fn from_str(text: &str) -> Result<Self, BadDistribution> {
        Self::parse(text, |size| parse_size(size).map_err(|error| error.to_string()))
    }
}

impl Distribution {
    /// A distribution whose sizes are read by `size`, which knows suffixes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(
        text: &str,
        size: impl Fn(&str) -> Result<u64, String>,
    ) -> Result<Self, BadDistribution> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let parsed = match name {
            "random" if rest.is_empty() => Ok(Self::Random),
            "zipf" => number(rest, 1e6, 0.0, 10.0).map(Self::Zipf),
            "pareto" => number(rest, 1e6, 0.0, 1.0).map(Self::Pareto),
            "normal" => number(rest, 1e4, 0.0, 100.0).map(Self::Normal),
            "zoned" => zones(rest).map(Self::Zoned),
            "zoned_abs" => zones_of_bytes(rest, size).map(Self::ZonedAbs),
            _ => Err("this name is not known".to_owned()),
        };
        parsed.map_err(|why| BadDistribution { text: text.to_owned(), why })
    }
}

/// A parameter above `low` and below `high`, times `scale`.
fn number(text: &str, scale: f64, low: f64, high: f64) -> Result<u32, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > low && *number < high);
    // Small by the bounds.
    let scaled = number.map(|number| (number * scale).round() as u32).filter(|scaled| *scaled > 0);
    scaled.ok_or_else(|| format!("\"{text}\" is no number above {low} and below {high}"))
}

/// fio's order is I/Os, then size; here it is turned around.
fn turned(text: &str) -> Result<String, String> {
    let zones = text.split(':').map(|zone| match zone.split_once('/') {
        Some((ios, size)) => Ok(format!("{size}/{ios}")),
        None => Err(format!("\"{zone}\" has no IOS/SIZE")),
    });
    Ok(zones.collect::<Result<Vec<_>, _>>()?.join(":"))
}

fn zones_of_bytes(
    text: &str,
    size: impl Fn(&str) -> Result<u64, String>,
) -> Result<Vec<(u64, u8)>, String> {
    let zones = weighted(&turned(text)?, |bytes| match size(bytes)? {
        0 => Err(format!("a zone of \"{bytes}\" bytes holds nothing")),
        bytes => Ok(bytes),
    })?;
    let sum = zones.iter().try_fold(0_u64, |sum, (bytes, _)| sum.checked_add(*bytes));
    sum.map(|_| zones).ok_or_else(|| "its zones are more than 2^64 bytes together".to_owned())
}

fn zones(text: &str) -> Result<Vec<(u8, u8)>, String> {
    let percent = |size: &str| match size.trim_end_matches('%').parse::<u8>() {
        Ok(percent @ 1..=100) => Ok(percent),
        _ => Err(format!("\"{size}\" is no percentage from 1 to 100")),
    };
    let zones = weighted(&turned(text)?, percent)?;
    let sum: u32 = zones.iter().map(|(size, _)| u32::from(*size)).sum();
    if sum != 100 {
        return Err(format!("its zones are {sum} and not 100 percent of the range together"));
    }
    Ok(zones)
}

impl Serialize for Distribution {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Distribution {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Draws blocks of a range.
#[derive(Clone, Debug)]
pub(super) struct Places {
    shape: Shape,
    blocks: u64,
    /// Ranks are multiplied by it, and moved on by `shift`, modulo the blocks: each has a place of its
    /// own, far from the ranks beside it.
    stride: u64,
    shift: u64,
}

#[derive(Clone, Debug)]
enum Shape {
    Zipf(Zipf),
    /// A uniform draw to this power is the part of the blocks.
    Pareto(f64),
    /// The normal distribution of the block, and its probability below the range and inside it.
    Normal(Normal, f64, f64),
    /// Each zone's I/Os up to its end as a part of 2^64, its first block and its blocks.
    Zoned(Vec<(u64, u64, u64)>),
}

impl Places {
    /// Draws of `distribution` from `blocks` (at least one) of `block_bytes`; `None` where every block is
    /// alike. The same `seed` has the same hot blocks.
    pub(super) fn new(
        distribution: &Distribution,
        blocks: u64,
        block_bytes: u32,
        seed: u64,
    ) -> Option<Self> {
        let blocks = blocks.max(1);
        let part = |millionths: u32| f64::from(millionths) / f64::from(ONE);
        let shape = match distribution {
            Distribution::Random => return None,
            Distribution::Zipf(theta) => Shape::Zipf(Zipf::new(blocks, part(*theta))),
            Distribution::Pareto(h) => Shape::Pareto(part(*h).ln() / (1.0 - part(*h)).ln()),
            Distribution::Normal(deviation) => normal(blocks, part(*deviation))?,
            Distribution::Zoned(zones) => {
                let edge = |percent: u64| (u128::from(blocks) * u128::from(percent) / 100) as u64;
                Shape::Zoned(laid_out(
                    zones.iter().map(|(of, ios)| (u64::from(*of), *ios)),
                    edge,
                    blocks,
                ))
            }
            Distribution::ZonedAbs(zones) => {
                let edge = |bytes: u64| (bytes / u64::from(block_bytes.max(1))).min(blocks);
                Shape::Zoned(laid_out(zones.iter().copied(), edge, blocks))
            }
        };
        let golden = (blocks as f64 * 0.618_033_988_749_895) as u64;
        let stride = (golden.max(1)..).find(|stride| gcd(*stride, blocks) == 1).unwrap_or(1);
        let shift = scale(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), blocks);
        Some(Self { shape, blocks, stride, shift })
    }

    /// The next block.
    pub(super) fn next(&self, rng: &mut impl RngCore) -> u64 {
        let last = self.blocks - 1;
        match &self.shape {
            Shape::Zipf(zipf) => self.scattered(zipf.rank(rng)),
            Shape::Pareto(power) => {
                let part = uniform(rng).powf(*power);
                self.scattered(((self.blocks as f64 * part) as u64).min(last))
            }
            Shape::Normal(normal, below, inside) => {
                // Saturates at both ends.
                (normal.inverse_cdf(below + uniform(rng) * inside) as u64).min(last)
            }
            Shape::Zoned(zones) => {
                let draw = rng.next_u64();
                let zone = zones.iter().find(|(up_to, ..)| draw <= *up_to).or(zones.last());
                let (first, blocks) = zone.map_or((0, 1), |(_, first, blocks)| (*first, *blocks));
                (first + scale(rng.next_u64(), blocks)).min(last)
            }
        }
    }

    fn scattered(&self, rank: u64) -> u64 {
        let place = u128::from(rank) * u128::from(self.stride) + u128::from(self.shift);
        // Below the blocks, which are 64 bits.
        (place % u128::from(self.blocks)) as u64
    }
}

/// The normal distribution around the middle of the blocks, cut off at both ends.
fn normal(blocks: u64, deviation: f64) -> Option<Shape> {
    let blocks = blocks as f64;
    let normal = Normal::new(blocks / 2.0, (blocks * deviation).max(1e-3)).ok()?;
    let below = normal.cdf(0.0);
    let inside = normal.cdf(blocks) - below;
    Some(Shape::Normal(normal, below, inside))
}

/// Zones of a size each and percent of the I/Os; `edge` is the block at which so much of the range ends.
fn laid_out(
    zones: impl Iterator<Item = (u64, u8)>,
    edge: impl Fn(u64) -> u64,
    blocks: u64,
) -> Vec<(u64, u64, u64)> {
    let (mut ios, mut size) = (0_u64, 0_u64);
    let zone = |(of_size, of_ios): (u64, u8)| {
        let first = edge(size).min(blocks - 1);
        (size, ios) = (size.saturating_add(of_size), ios + u64::from(of_ios));
        let up_to = (u128::from(u64::MAX) * u128::from(ios.min(100)) / 100) as u64;
        (up_to, first, edge(size).saturating_sub(first).max(1))
    };
    zones.map(zone).collect()
}

/// From 0 to just below 1.
fn uniform(rng: &mut impl RngCore) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A draw of 64 bits as one of `of`.
pub(super) fn scale(draw: u64, of: u64) -> u64 {
    ((u128::from(draw) * u128::from(of)) >> 64) as u64
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Zipf's law by rejection and inversion (W. Hörmann and G. Derflinger, "Rejection-inversion to generate
/// variates from monotone discrete distributions", 1996): no table, and no sum over all blocks first.
#[derive(Clone, Debug)]
struct Zipf {
    theta: f64,
    blocks: f64,
    /// The integral of the density from the middle of the first rank on, and up to the end.
    from: f64,
    to: f64,
    /// A rank this close below the draw is always one.
    squeeze: f64,
}

impl Zipf {
    fn new(blocks: u64, theta: f64) -> Self {
        let blocks = blocks as f64;
        let mut zipf = Self { theta, blocks, from: 0.0, to: 0.0, squeeze: 0.0 };
        zipf.from = zipf.integral(1.5) - 1.0;
        zipf.to = zipf.integral(blocks + 0.5);
        zipf.squeeze = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// From 0, the most frequent.
    fn rank(&self, rng: &mut impl RngCore) -> u64 {
        let mut rank = 1.0;
        for _ in 0..TRIES_MAX {
            let draw = self.to + uniform(rng) * (self.from - self.to);
            let at = self.inverse(draw);
            rank = at.round().clamp(1.0, self.blocks);
            let is_one =
                rank - at <= self.squeeze || draw >= self.integral(rank + 0.5) - self.density(rank);
            if is_one {
                break;
            }
        }
        rank as u64 - 1
    }

    fn density(&self, x: f64) -> f64 {
        (-self.theta * x.ln()).exp()
    }

    /// (x^(1 - theta) - 1) / (1 - theta), which is ln x for theta = 1.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let power = (1.0 - self.theta) * log;
        if power.abs() < 1e-8 { log } else { power.exp_m1() / power * log }
    }

    fn inverse(&self, y: f64) -> f64 {
        // Rounding may go a little past -1, where there is no logarithm.
        let power = ((1.0 - self.theta) * y).max(-1.0 + 1e-15);
        let log = if power.abs() < 1e-8 { y } else { power.ln_1p() / power * y };
        log.exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::SeedableRng;
    use rand_xoshiro::Xoroshiro128PlusPlus;

    fn counts(text: &str, blocks: u64, draws: u32) -> Vec<u64> {
        let places = Places::new(&text.parse().unwrap(), blocks, 4096, 3).unwrap();
        let mut rng = Xoroshiro128PlusPlus::seed_from_u64(5);
        let mut counts = vec![0_u64; blocks as usize];
        (0..draws).for_each(|_| counts[places.next(&mut rng) as usize] += 1);
        counts
    }

    /// The hottest first.
    fn sorted(mut counts: Vec<u64>) -> Vec<u64> {
        counts.sort_by(|a, b| b.cmp(a));
        counts
    }

    #[test]
    fn zipf_is_as_often_as_its_rank_says() {
        for theta in [0.5, 0.99, 1.0, 1.2, 2.5] {
            let places = Zipf::new(100, theta);
            let mut rng = Xoroshiro128PlusPlus::seed_from_u64(9);
            let mut counts = [0_u64; 100];
            (0..200_000).for_each(|_| counts[places.rank(&mut rng) as usize] += 1);
            let weights: Vec<f64> = (1..=100).map(|rank| f64::from(rank).powf(-theta)).collect();
            let sum: f64 = weights.iter().sum();
            let cells = counts.iter().zip(&weights).filter(|(_, weight)| *weight / sum > 5e-5);
            let (chi, cells) = cells.fold((0.0, 0), |(chi, cells), (seen, weight)| {
                let expected = weight / sum * 200_000.0;
                (chi + (*seen as f64 - expected).powi(2) / expected, cells + 1)
            });
            // 99 degrees of freedom: above 149 once in 1,000 (and the seed is fixed).
            assert!(chi < 149.0, "{theta}: {chi} over {cells}");
        }
    }

    #[test]
    fn zipf_over_more_blocks_than_a_table_would_hold() {
        let places = Places::new(&"zipf:1.1".parse().unwrap(), 1 << 50, 4096, 0).unwrap();
        let mut rng = Xoroshiro128PlusPlus::seed_from_u64(1);
        let mut drawn: Vec<u64> = (0..10_000).map(|_| places.next(&mut rng)).collect();
        assert!(drawn.iter().all(|block| *block < 1 << 50));
        drawn.sort();
        let most = drawn.chunk_by(|a, b| a == b).map(<[u64]>::len).max().unwrap();
        // 1 / zeta(1.1) is 0.0945, and the tail beyond 2^50 takes a little of the rest.
        assert!((900..1150).contains(&most), "{most}");
    }

    #[test]
    fn hot_blocks_are_no_neighbours() {
        let counts = counts("zipf:1.5", 1000, 100_000);
        let mut hot: Vec<usize> = (0..1000).collect();
        hot.sort_by_key(|block| std::cmp::Reverse(counts[*block]));
        let apart = hot[..4].windows(2).all(|pair| pair[0].abs_diff(pair[1]) > 20);
        assert!(apart, "{:?}", &hot[..4]);
        assert!(counts.iter().filter(|count| **count > 0).count() > 700, "each rank has a place");
    }

    #[test]
    fn pareto_gives_a_fifth_of_the_blocks_four_fifths() {
        let counts = sorted(counts("pareto:0.2", 1000, 200_000));
        let hot: u64 = counts[..200].iter().sum();
        assert!((158_000..162_500).contains(&hot), "{hot} of 200,000");
        // Self-similar: of the hot ones again.
        let hotter: u64 = counts[..40].iter().sum();
        assert!((126_000..131_000).contains(&hotter), "{hotter}: 0.64 of 200,000");
    }

    #[test]
    fn normal_is_around_the_middle() {
        let counts = counts("normal:10", 1000, 100_000);
        let within = |from: usize, to: usize| counts[from..to].iter().sum::<u64>() as f64 / 1e5;
        // 0.6827 within one deviation, 0.9545 within two.
        assert!((within(400, 600) - 0.6827).abs() < 0.005, "{}", within(400, 600));
        assert!((within(300, 700) - 0.9545).abs() < 0.003, "{}", within(300, 700));
        // So flat that it is cut off on both sides, and nothing piles up there.
        let flat = super::tests::counts("normal:99", 100, 100_000);
        assert!(flat.iter().all(|count| (800..1300).contains(count)), "{flat:?}");
    }

    #[test]
    fn zones_are_where_they_are() {
        let counts = counts("zoned:60/10:30/20:10/70", 1000, 100_000);
        for (from, to, part) in [(0, 100, 0.6), (100, 300, 0.3), (300, 1000, 0.1)] {
            let seen = counts[from..to].iter().sum::<u64>() as f64 / 1e5;
            assert!((seen - part).abs() < 0.006, "{from}: {seen}");
        }
        assert_eq!(
            super::tests::counts("zoned:50/50:50/50", 1, 10),
            [10],
            "fewer blocks than zones"
        );
    }

    #[test]
    fn zones_of_bytes_are_where_they_say() {
        let zones: Distribution = "zoned_abs:60/1m:30/2m:10/1m".parse().unwrap();
        // 8 MiB in blocks of 4 KiB, of which the last four get none.
        let places = Places::new(&zones, 2048, 4096, 0).unwrap();
        let mut rng = Xoroshiro128PlusPlus::seed_from_u64(1);
        let mut counts = [0_u32; 8];
        (0..100_000).for_each(|_| counts[(places.next(&mut rng) / 256) as usize] += 1);
        assert_eq!(counts[4..], [0; 4]);
        for (found, expected) in counts.into_iter().zip([60_000.0, 15_000.0, 15_000.0, 10_000.0]) {
            assert!((f64::from(found) / expected - 1.0).abs() < 0.03, "{counts:?}");
        }
    }

    #[test]
    fn written_as_read() {
        for text in [
            "random",
            "zipf:1.2",
            "pareto:0.2",
            "normal:12.5",
            "zoned:60/10:40/90",
            "zoned_abs:60/1m:40/3g",
        ] {
            let distribution: Distribution = text.parse().unwrap();
            assert_eq!(distribution.to_string(), text);
            let json = serde_json::to_string(&distribution).unwrap();
            assert_eq!(serde_json::from_str::<Distribution>(&json).unwrap(), distribution);
        }
        for (text, why) in [
            ("", "not known"),
            ("zipf", "no number"),
            ("zipf:0", "above 0"),
            ("zipf:nan", "no number"),
            ("zipf:1.2:0.5", "no number"),
            ("pareto:1", "below 1"),
            ("normal:100", "below 100"),
            ("zoned:60/10", "60 and not 100"),
            ("zoned:60/10:40/10", "20 and not 100"),
            ("zoned:100", "no IOS/SIZE"),
            ("zoned_abs:60/1q:40/90", "no size"),
            ("zoned_abs:60/0:40/1m", "holds nothing"),
            ("zoned_abs:60/1m", "60 and not 100"),
            ("zoned_abs:50/16777215t:50/16777215t", "2^64"),
            ("random:1", "not known"),
        ] {
            let message = text.parse::<Distribution>().unwrap_err().to_string();
            assert!(message.contains(why), "{text}: {message}");
        }
    }
}
