//! `hot-loop`: a fixed number of I/Os through the real loop or the driver alone, for an
//! instruction counter.
//!
//! `tools/bench/instructions` runs it below callgrind with two lengths and divides the difference;
//! by itself it prints nanoseconds. Start reading at [`Part`].
//!
//! # What it does not do
//!
//! It measures no drive and checks no target: a path that is named is read from, and written to
//! with a pattern that writes.

#![forbid(unsafe_code)]

mod driver;

use anyhow::{Context, bail, ensure};
use clap::{Parser, ValueEnum};
use nvpoll::measure::Clock;
use nvpoll::run::{Control, Lane, Many, Progress, Window};
use nvpoll::workload::units::parse_size;
use nvpoll::workload::{Generator, Rw, Workload};
use nvpoll_engine::{
    Engine, EngineKind, Geometry, OpenOptions, QueueShape, SoftOptions, Target, Visitor,
};
use std::path::PathBuf;
use std::time::Instant;

/// What of a run is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// `Lane::drive`: generator, engine, clock and recorder, as in a measurement.
    Loop,
    /// The engine's push, kick and reap, in a loop that does nothing else.
    Driver,
    /// `reap` on a queue where nothing is in flight.
    Poll,
}

/// Drives a fixed number of I/Os through one engine.
#[derive(Debug, Parser)]
#[command(name = "hot-loop")]
struct Cli {
    /// The engine's name.
    engine: EngineKind,
    /// How many I/Os, or polls.
    ios: u64,
    /// What of a run is driven.
    #[arg(long, value_enum, default_value = "loop")]
    part: Part,
    /// Access pattern.
    #[arg(long, default_value = "randread")]
    rw: Rw,
    /// Bytes an I/O.
    #[arg(long, default_value = "4k", value_parser = block_size)]
    bs: u32,
    /// I/Os in flight.
    #[arg(long, default_value_t = 32)]
    iodepth: u32,
    /// Queues on each drive, all polled by this one thread, each with its I/Os in flight.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    queues: u32,
    /// Drives, likewise.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    drives: u32,
    /// A soft drive or a path; a stepped soft drive without data for the engine soft.
    #[arg(long)]
    target: Option<String>,
}

fn block_size(text: &str) -> anyhow::Result<u32> {
    Ok(u32::try_from(parse_size(text)?)?)
}

impl Cli {
    fn target(&self) -> anyhow::Result<Target> {
        let text = match (&self.target, self.engine) {
            (Some(text), _) => text,
            (None, EngineKind::Null) => return Ok(Target::Null),
            (None, EngineKind::Soft) => "soft:size=64G,backing=null,stepped",
            (None, engine) => bail!("engine {engine} needs a target; name one with --target"),
        };
        if self.engine != EngineKind::Soft {
            return Ok(Target::Path(PathBuf::from(text)));
        }
        let options: SoftOptions = text.parse()?;
        Ok(Target::Soft(options))
    }
}

impl Visitor for &Cli {
    type Output = anyhow::Result<()>;

    fn visit<E: Engine>(self) -> Self::Output {
        let target = self.target()?;
        let options = OpenOptions { writable: self.rw.writes(), ..OpenOptions::default() };
        let open = |_| E::open(&target, &options);
        let engines = (0..self.drives).map(open).collect::<Result<Vec<E>, _>>()?;
        let shape = |worker| QueueShape { worker, depth: self.iodepth, io_bytes: self.bs };
        let of_drive = |engine| (0..self.queues).map(move |worker| E::queue(engine, shape(worker)));
        let mut queues = engines.iter().flat_map(of_drive).collect::<Result<Vec<_>, _>>()?;
        let geometry = engines.first().context("no drive")?.geometry(self.bs);
        if let [queue] = &mut queues[..] {
            return self.drive(queue, self.iodepth, &geometry);
        }
        if const { !E::INFO.has_doorbells() } {
            bail!("engine {} has a worker for each queue", self.engine);
        }
        let depth = self.iodepth.saturating_mul(queues.len() as u32);
        let many = Many::new(queues, u16::try_from(self.iodepth).context("--iodepth")?);
        let mut many = many.context("more I/Os in flight than one worker keeps")?;
        self.drive(&mut many, depth, &geometry)
    }
}

impl Cli {
    fn drive<Q: nvpoll_engine::Queue>(
        &self,
        queue: &mut Q,
        depth: u32,
        geometry: &Geometry,
    ) -> anyhow::Result<()> {
        match self.part {
            Part::Loop => self.whole_loop(queue, depth, geometry),
            Part::Driver => self.driver(queue, depth, geometry),
            Part::Poll => {
                let start = Instant::now();
                driver::poll_in_vain(queue, self.ios)?;
                self.print(start, "polls");
                Ok(())
            }
        }
    }

    fn whole_loop<Q: nvpoll_engine::Queue>(
        &self,
        queue: &mut Q,
        depth: u32,
        geometry: &Geometry,
    ) -> anyhow::Result<()> {
        let workload = Workload::new(self.rw, self.bs, self.iodepth);
        let span = workload.span(geometry.size_bytes, geometry.block_bytes)?;
        let depth = u16::try_from(depth).context("--iodepth")?;
        let clock = Clock::new();
        let mut lane = Lane::new(clock.clone(), Generator::new(&workload, span, 0, 0), depth);
        let window = Window { opens: clock.now(), closes: u64::MAX, ios: self.ios };
        let (control, progress) = (Control::new(), Progress::default());
        let start = Instant::now();
        let result = lane.drive(queue, window, &control, &progress)?;
        self.print(start, "I/Os");
        let recorder = lane.into_recorder();
        let (counted, failed) = (recorder.count_all(), recorder.errors().total());
        ensure!(
            counted == self.ios && failed == 0,
            "of {} I/Os {counted} were recorded and {failed} failed",
            self.ios
        );
        println!(
            "mean batch {:.1}, {} empty polls",
            self.ios as f64 / result.useful_polls as f64,
            result.empty_polls
        );
        Ok(())
    }

    fn driver<Q: nvpoll_engine::Queue>(
        &self,
        queue: &mut Q,
        depth: u32,
        geometry: &Geometry,
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        driver::batches(queue, self.ios, depth, self.bs, geometry.size_bytes)?;
        self.print(start, "I/Os");
        Ok(())
    }

    fn print(&self, start: Instant, what: &str) {
        let ns = start.elapsed().as_nanos() as f64 / self.ios.max(1) as f64;
        println!("{}: {} {what}, {ns:.2} ns each", self.engine, self.ios);
    }
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    cli.engine.with(&cli)
}
