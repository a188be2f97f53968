//! What can be typed. Workload options have fio's names and value syntax.

use super::workload_args::WorkloadArgs;
use crate::failure::Failure;
use crate::plan::Transport;
use crate::run::{CpuList, Timing};
use crate::workload::SuiteTiming;
use crate::workload::units::{parse_size, parse_time, parse_time_us};
use clap::{Args, Parser, Subcommand};
use nvpoll_engine::{
    DoorbellMode, EngineChoice, EngineOptions, IommuInterface, NumaPolicy, ProtectionMode, Quirks,
    SecureErase, TransportOptions, WaitMode,
};
use nvpoll_host::UserDriver;
use std::path::PathBuf;
use std::time::Duration;

/// What does the storage stack cost on this drive?
///
/// Runs the same workload through a userspace NVMe driver and through the kernel's own paths, and
/// puts the results side by side. Exit status: 0 all measured, 1 something failed (what was
/// measured is kept and marked), 2 bad usage, 3 refused for safety.
#[derive(Debug, Parser)]
#[command(name = "nvpoll", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Every NVMe drive of this machine, its driver and what uses it
    List(ListArgs),
    /// What stands in the way of a measurement, and of a good one, with what to do
    ///
    /// A line a check: what it means (ok, warning, blocks, not known), what was found, what is
    /// needed, what to do. Exit status: 0 when `bind` (or, where no bind is needed, `run`) would
    /// work for every target, 1 when not; without a target, whether it would for any drive.
    Doctor(DoctorArgs),
    /// Hand drives to a userspace driver, until `unbind`
    Bind(BindArgs),
    /// Give drives back as they were found
    Unbind(UnbindArgs),
    /// What a controller and its namespaces say of themselves
    Identify(IdentifyArgs),
    /// Another LBA format or protection information for a namespace; everything on it is lost
    ///
    /// The drive is taken from the kernel for it, where that has it, and given back.
    Format(FormatArgs),
    /// One workload on one engine
    Run(RunArgs),
    /// The main job: several engines on the same drives, one table
    ///
    /// Drives are taken from the kernel and given back as needed, also after Ctrl-C. Rounds are
    /// interleaved (A B B A). Without a target a soft drive and a scratch file stand in.
    Compare(CompareArgs),
    /// Result files, from any machine and system, as one table, page or document
    ///
    /// Reads results of `--json`, fio's JSON (`--output-format=json` or `json+`) and published tables as
    /// CSV, and puts rows of the same workload side by side. Two stacks are compared where they ran on the
    /// same drives; docs/REPORT.md says how.
    Report(super::report::ReportArgs),
    /// A result's plan once more, and what differs
    ///
    /// Runs what the file's plan says on the targets that it names, then prints what differs in the
    /// environment, and the new figures beside the old ones: by how much they differ, or that they
    /// cannot be told apart.
    Rerun(super::rerun::RerunArgs),
}

/// `nvpoll list`
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only these: PCI addresses, device nodes or by-id links [default: every drive]
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// One JSON document instead of the table
    #[arg(long)]
    pub json: bool,
}

/// `nvpoll doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Drives, block devices or files; soft[:options]; null [default: every drive]
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// One JSON document instead of lines
    #[arg(long)]
    pub json: bool,
    /// Block size of the run that is asked about
    #[arg(long, value_name = "SIZE", value_parser = block_size, alias = "blocksize", default_value = "4k")]
    pub bs: u32,
    /// Its I/Os in flight, a worker and drive
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub iodepth: u32,
    /// Its workers a drive
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub numjobs: u32,
    /// The kernel's driver, as `bind` is told it
    #[arg(long, value_name = "DRIVER", value_parser = user_driver)]
    pub driver: Option<UserDriver>,
    /// A drive that no IOMMU keeps from this machine's memory may be bound
    #[arg(long)]
    pub unsafe_no_iommu: bool,
}

/// `nvpoll bind`
#[derive(Debug, Args)]
pub struct BindArgs {
    /// PCI addresses, device nodes or by-id links
    #[arg(required = true, value_name = "TARGET")]
    pub targets: Vec<String>,
    /// The kernel's driver that hands the drive over: vfio-pci, or uio_pci_generic, which has no
    /// IOMMU to keep the drive from this machine's memory [default: vfio-pci, where an IOMMU
    /// stands in front of the drive]
    #[arg(long, value_name = "DRIVER", value_parser = user_driver)]
    pub driver: Option<UserDriver>,
    /// Take a drive that no IOMMU keeps from this machine's memory: a fault of the drive or of
    /// nvpoll can overwrite any of it
    #[arg(long)]
    pub unsafe_no_iommu: bool,
    /// Give the drive's nodes to this user, who can then `run` on it without root; also for a
    /// drive that is bound already
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
}

/// `nvpoll unbind`
#[derive(Debug, Args)]
pub struct UnbindArgs {
    /// PCI addresses, or the names that the drives had
    #[arg(value_name = "TARGET", required_unless_present = "all", conflicts_with = "all")]
    pub targets: Vec<String>,
    /// Every drive that nvpoll has taken and nobody drives any more
    #[arg(long)]
    pub all: bool,
    /// For a drive that nvpoll has no record of: the driver to give it to
    #[arg(long, value_name = "DRIVER")]
    pub to: Option<String>,
}

/// `nvpoll identify`
#[derive(Debug, Args)]
pub struct IdentifyArgs {
    /// A drive that is bound to a userspace driver, or soft[:options]
    #[arg(value_name = "TARGET")]
    pub target: String,
    /// How the drive is reached.
    #[command(flatten)]
    pub transport: TransportArgs,
    /// One JSON document instead of text
    #[arg(long)]
    pub json: bool,
}

/// `nvpoll format`
#[derive(Debug, Args)]
pub struct FormatArgs {
    /// A drive or one of its namespaces: PCI address, device node or by-id link; soft[:options]
    #[arg(value_name = "TARGET")]
    pub target: String,
    /// Bytes of a logical block; of several such formats the best (RP)
    #[arg(long, value_name = "SIZE", value_parser = block_size, conflicts_with = "lbaf")]
    pub block_size: Option<u32>,
    /// Bytes of metadata that each block has beside its data [default: 0, or 8 with --pi]
    #[arg(long, value_name = "BYTES", requires = "block_size")]
    pub ms: Option<u16>,
    /// The LBA format's index, as `identify` lists them [default: the one that it has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=63))]
    pub lbaf: Option<u8>,
    /// Metadata stands behind each block's data in one buffer [default: in memory of its own]
    #[arg(long)]
    pub extended: bool,
    /// Type of protection information [default: 0, none]
    #[arg(long, value_name = "TYPE", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub pi: u8,
    /// Protection information is the metadata's first bytes, not its last
    #[arg(long)]
    pub pil: bool,
    /// What is done with the data that was there: none, user-data, cryptographic
    #[arg(long, value_name = "HOW", default_value_t = SecureErase::None)]
    pub ses: SecureErase,
    /// Leave: the drive's serial number
    #[arg(long, value_name = "SERIAL")]
    pub destroy_data: Vec<String>,
    /// How the drive is reached.
    #[command(flatten)]
    pub transport: TransportArgs,
}

/// `nvpoll run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Drives, block devices or files; soft[:options]; null. Several run at once, as one system
    #[arg(required = true, value_name = "TARGET")]
    pub targets: Vec<String>,
    /// The engine; without it the userspace driver where the drive is bound to it, else the
    /// kernel's best path. With options of its own behind a colon, as in io_uring:iopoll+batch=8
    #[arg(long, value_name = "ENGINE", value_parser = engine)]
    pub engine: Option<EngineChoice>,
    /// The workload.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// How it is run.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `nvpoll compare`
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Drives, by PCI address, node or by-id link; also soft[:options], block devices and files.
    /// Several run at once, as one system
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Engines, the first one is what the others are compared with [default: all that fit]. An
    /// engine may have options of its own behind a colon, and stand there once with each:
    /// io_uring,io_uring:iopoll,io_uring:sqpoll+batch=8
    #[arg(long, value_name = "A,B,…", value_delimiter = ',', value_parser = engine)]
    pub engines: Vec<EngineChoice>,
    /// Rounds; the intervals are over rounds, so that fewer than two give none
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Folder for the scratch file that is used when no target is named
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub scratch: PathBuf,
    /// The workload.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// How it is run.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// How the userspace driver reaches a drive.
#[derive(Clone, Copy, Debug, Args)]
pub struct TransportArgs {
    /// The kernel's interface to the IOMMU under vfio-pci: type1 (by group), iommufd (by device),
    /// or best, which is type1 where the kernel has it
    #[arg(long, value_name = "INTERFACE", default_value_t = IommuInterface::Best)]
    pub iommu: IommuInterface,
    /// Drive a drive that no IOMMU keeps from this machine's memory: a fault of the drive or of
    /// nvpoll can overwrite any of it
    #[arg(long)]
    pub unsafe_no_iommu: bool,
    /// What the controller needs beyond the specification, instead of what is known of it (see
    /// `identify`): none, or names as one-command,no-prp-lists
    #[arg(long, value_name = "NAMES", value_parser = quirks)]
    pub quirks: Option<Quirks>,
}

impl TransportArgs {
    /// As the engines take them.
    pub fn options(self) -> TransportOptions {
        TransportOptions {
            iommu: self.iommu,
            allow_no_iommu: self.unsafe_no_iommu,
            ..TransportOptions::default()
        }
    }
}

/// What `run` and `compare` share.
#[derive(Debug, Args)]
#[command(next_help_heading = "Running")]
pub struct CommonArgs {
    /// Measured time of each round [default: 10, or 1 without a target]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub runtime: Option<Duration>,
    /// I/O before the measured time [default: 2, or 0.2 without a target]
    #[arg(long, value_name = "TIME", value_parser = time, alias = "ramp_time")]
    pub ramp_time: Option<Duration>,
    /// I/Os of each worker, instead of a time
    #[arg(long, value_name = "N", alias = "number_ios", conflicts_with_all = ["runtime", "ramp_time"])]
    pub number_ios: Option<u64>,
    /// Processors that the workers are pinned to, as 2,4-7 [default: all that may be used]
    #[arg(long, value_name = "LIST", alias = "cpus_allowed")]
    pub cpus: Option<CpuList>,
    /// Allow writes to the drive with this serial number (or the block device or file of this
    /// name); everything on it is lost
    #[arg(long, value_name = "SERIAL")]
    pub destroy_data: Vec<String>,
    /// Before the measurement write all of each target twice in order, then at random until it is
    /// steady, in rounds of --runtime and 25 of them at most; a drive needs --destroy-data for it
    #[arg(long)]
    pub precondition: bool,
    /// The result as one JSON document, to a file or, as -, to stdout instead of the table
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// How the userspace driver reaches a drive.
    #[command(flatten)]
    pub transport: TransportArgs,
    /// How the userspace driver waits for completions: poll; irq (sleeps until the drive's
    /// interrupt); hybrid (sleeps for half the mean wait, then polls); adaptive (polls for 20 us,
    /// then sleeps until the interrupt)
    #[arg(long, value_name = "HOW", default_value_t = WaitMode::Poll)]
    pub wait: WaitMode,
    /// On a machine with several NUMA nodes: near (the userspace driver's memory on the drive's node,
    /// workers of every engine on its processors first) or any (memory where the workers run, which
    /// take the processors in their order)
    #[arg(long, value_name = "POLICY", default_value_t = NumaPolicy::Near)]
    pub numa: NumaPolicy,
    /// When the userspace driver writes doorbells: batch (once for all that a pass sends, once for
    /// all that it takes) or each (for every I/O and every completion); also behind an engine's
    /// colon, as in vfio:doorbell=each [default: batch]
    #[arg(long, value_name = "WHEN")]
    pub doorbell: Option<DoorbellMode>,
    /// The userspace driver names an I/O's data by an SGL data block, where the controller has SGLs,
    /// instead of PRPs; also behind an engine's colon, as in vfio:sgl
    #[arg(long)]
    pub sgl: bool,
    /// Who makes and checks the protection information of a drive that is formatted with some, for
    /// the userspace driver: controller (PRACT), or host, which costs its CRC for each block; also
    /// behind an engine's colon, as in vfio:pi=host [default: controller]
    #[arg(long, value_name = "WHO")]
    pub pi: Option<ProtectionMode>,
    /// The userspace driver writes doorbells to memory first, where the controller has shadow doorbells
    /// (one in software, as a virtual machine's), and to its registers only where it asks for that; also
    /// behind an engine's colon, as in vfio:shadow-doorbells
    #[arg(long)]
    pub shadow_doorbells: bool,
    /// Drives that one worker of the userspace driver has a queue on and polls in turn, each at
    /// --iodepth
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub drives_per_worker: u32,
    /// Time the stages of each I/O on the userspace driver (build, device, detect, reap) and show
    /// them with the batches and what the instruments cost. A row says that it was measured so
    #[arg(long)]
    pub instruments: bool,
    /// How the kernel's engines run.
    #[command(flatten)]
    pub kernel: KernelArgs,
}

/// How the kernel's engines run: each option goes to every engine of the command that has it.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Kernel engines (for all of a command; one by one behind its colon)")]
pub struct KernelArgs {
    /// Let the kernel poll for completions, where the drive has polled queues; a row that was not
    /// polled says so [io_uring, io_uring_cmd, psync]
    #[arg(long, alias = "hipri")]
    pub iopoll: bool,
    /// The same, after a sleep of half the time that an I/O took so far (Linux 6.13) [io_uring,
    /// io_uring_cmd]
    #[arg(long)]
    pub hybrid_iopoll: bool,
    /// Let a thread of the kernel's submit; its processor time is counted [io_uring, io_uring_cmd]
    #[arg(long, alias = "sqthread_poll")]
    pub sqpoll: bool,
    /// How long that thread stays awake without work [default: 1 second]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=3_600_000))]
    pub sqpoll_idle: Option<u32>,
    /// The processor that it is pinned to [default: none]
    #[arg(long, value_name = "N", alias = "sqthread_poll_cpu")]
    pub sqpoll_cpu: Option<u32>,
    /// Register neither buffers nor files [io_uring, io_uring_cmd]
    #[arg(long)]
    pub no_fixed: bool,
    /// I/Os that one system call waits for, and sends again together [default: 1] [io_uring,
    /// io_uring_cmd, libaio]
    #[arg(long, value_name = "N", alias = "iodepth_batch", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch: Option<u32>,
    /// Go through the page cache instead of direct I/O; the row is marked [io_uring, libaio,
    /// psync]
    #[arg(long)]
    pub buffered: bool,
}

impl KernelArgs {
    /// As the engines take them.
    pub fn options(&self) -> EngineOptions {
        EngineOptions {
            iopoll: self.iopoll,
            hybrid: self.hybrid_iopoll,
            sqpoll: self.sqpoll,
            sqpoll_idle_ms: self.sqpoll_idle,
            sqpoll_cpu: self.sqpoll_cpu,
            no_fixed: self.no_fixed,
            batch: self.batch,
            buffered: self.buffered,
            doorbell: None,
            pi: None,
            sgl: false,
            shadow_doorbells: false,
        }
        .completed()
    }
}

/// Longest ramp and runtime.
const TIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

fn engine(name: &str) -> Result<EngineChoice, String> {
    name.parse::<EngineChoice>().map_err(|error| error.to_string())
}

fn quirks(names: &str) -> Result<Quirks, String> {
    names.parse()
}

fn user_driver(name: &str) -> Result<UserDriver, String> {
    UserDriver::from_name(name).ok_or_else(|| {
        let names = UserDriver::ALL.map(UserDriver::name).join(", ");
        format!("no driver hands drives over that is called \"{name}\"; there are {names}")
    })
}

pub(super) fn block_size(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    u32::try_from(bytes).map_err(|_| format!("a block size of {bytes} bytes is too large"))
}

pub(super) fn time_us(text: &str) -> Result<u64, String> {
    parse_time_us(text).map_err(|error| error.to_string())
}

fn time(text: &str) -> Result<Duration, String> {
    let time = parse_time(text).map_err(|error| error.to_string())?;
    match time > TIME_MAX {
        true => Err("at most 7 days are possible".to_owned()),
        false => Ok(time),
    }
}

impl CommonArgs {
    /// Ramp and runtime, or a number of I/Os: as typed, as the suite has it, or these.
    ///
    /// # Errors
    /// A runtime or a number of zero.
    pub fn timing(
        &self,
        suite: SuiteTiming,
        ramp_s: f64,
        runtime_s: f64,
    ) -> Result<Timing, Failure> {
        let typed_time = self.runtime.is_some() || self.ramp_time.is_some();
        let of_suite = suite.number_ios.filter(|_| !typed_time);
        let number_ios = self.number_ios.or(of_suite);
        let runtime = self.runtime.or(suite.runtime);
        let ramp = self.ramp_time.or(suite.ramp);
        if number_ios == Some(0) {
            return Err(Failure::usage(
                "--number-ios 0: nothing would be measured; give at least 1",
            ));
        }
        if runtime.is_some_and(|time| time.is_zero()) {
            return Err(Failure::usage(
                "--runtime 0: nothing would be measured; give a time such as 10 or 500ms",
            ));
        }
        Ok(Timing {
            ramp_s: ramp.map_or(ramp_s, |time| time.as_secs_f64()),
            runtime_s: runtime.map_or(runtime_s, |time| time.as_secs_f64()),
            number_ios,
        })
    }

    /// How drives are reached and waited for.
    pub fn transport(&self) -> Transport {
        let TransportArgs { iommu, unsafe_no_iommu, quirks } = self.transport;
        Transport { iommu, unsafe_no_iommu, wait: self.wait, numa: self.numa, quirks }
    }

    /// The engines' options that hold for the whole command.
    pub fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            doorbell: self.doorbell,
            sgl: self.sgl,
            pi: self.pi,
            shadow_doorbells: self.shadow_doorbells,
            ..self.kernel.options()
        }
    }

    /// The processors to pin to.
    ///
    /// # Errors
    /// A processor that this process may not use.
    pub fn cpu_list(&self) -> Result<CpuList, Failure> {
        match &self.cpus {
            Some(list) => list.clone().check().map_err(|error| Failure::usage(error.to_string())),
            None => Ok(CpuList::allowed()),
        }
    }
}
