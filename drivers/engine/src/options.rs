//! How an engine may be told to run: the options, which engine has which, and an engine with its
//! options as a user writes it (`io_uring:iopoll+batch=8`, `vfio:doorbell=each`).

use crate::{DoorbellMode, EngineInfo, EngineKind, ProtectionMode, UnknownEngine};
use std::fmt;
use std::str::FromStr;

/// Longest time in milliseconds that a submission thread may be told to stay awake for.
const SQPOLL_IDLE_MS_MAX: u32 = 3_600_000;
/// Largest batch: no queue is deeper.
const BATCH_MAX: u32 = 1 << 16;

/// One option of an engine: all but the last four are the kernel's engines'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineOption {
    /// Completions are polled for by the kernel, where the queue can.
    Iopoll,
    /// The same after a sleep of half the time that an I/O took so far.
    HybridIopoll,
    /// A thread of the kernel's submits.
    Sqpoll,
    /// How long that thread stays awake without work.
    SqpollIdle,
    /// The processor that it is pinned to.
    SqpollCpu,
    /// Neither buffers nor files are registered.
    NoFixed,
    /// A system call waits for so many completions.
    Batch,
    /// Through the page cache.
    Buffered,
    /// When the userspace driver writes doorbells.
    Doorbell,
    /// The userspace driver names data by SGL data blocks, not by PRPs.
    Sgl,
    /// Who makes and checks protection information on the userspace driver's way.
    Pi,
    /// The userspace driver writes doorbells to memory first.
    ShadowDoorbells,
}

impl EngineOption {
    /// The kernel's engines'.
    pub const OF_KERNEL: [Self; 8] = [
        Self::Iopoll,
        Self::HybridIopoll,
        Self::Sqpoll,
        Self::SqpollIdle,
        Self::SqpollCpu,
        Self::NoFixed,
        Self::Batch,
        Self::Buffered,
    ];

    /// All of them, in the order in which they are written.
    pub const ALL: [Self; 12] = [
        Self::Iopoll,
        Self::HybridIopoll,
        Self::Sqpoll,
        Self::SqpollIdle,
        Self::SqpollCpu,
        Self::NoFixed,
        Self::Batch,
        Self::Buffered,
        Self::Doorbell,
        Self::Sgl,
        Self::Pi,
        Self::ShadowDoorbells,
    ];

    /// The userspace driver's, on each of its transports.
    pub const OF_USERSPACE: [Self; 4] =
        [Self::Doorbell, Self::Sgl, Self::Pi, Self::ShadowDoorbells];

    /// Its name, as in `--name` and behind an engine's colon.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Iopoll => "iopoll",
            Self::HybridIopoll => "hybrid-iopoll",
            Self::Sqpoll => "sqpoll",
            Self::SqpollIdle => "sqpoll-idle",
            Self::SqpollCpu => "sqpoll-cpu",
            Self::NoFixed => "no-fixed",
            Self::Batch => "batch",
            Self::Buffered => "buffered",
            Self::Doorbell => "doorbell",
            Self::Sgl => "sgl",
            Self::Pi => "pi",
            Self::ShadowDoorbells => "shadow-doorbells",
        }
    }

    /// fio's name for the same, where it has one.
    const fn fio_name(self) -> Option<&'static str> {
        match self {
            Self::Iopoll => Some("hipri"),
            Self::Sqpoll => Some("sqthread_poll"),
            Self::SqpollCpu => Some("sqthread_poll_cpu"),
            Self::Batch => Some("iodepth_batch"),
            _ => None,
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|option| option.name() == name || option.fio_name() == Some(name))
    }

    /// Those of `engine`, for messages.
    fn list(engine: &EngineInfo) -> String {
        match engine.options {
            [] => "it has none".to_owned(),
            options => {
                let names: Vec<_> = options.iter().map(|option| option.name()).collect();
                format!("it has {}", names.join(", "))
            }
        }
    }
}

/// How an engine runs. The default is what makes each fastest without help from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EngineOptions {
    /// [`EngineOption::Iopoll`].
    pub iopoll: bool,
    /// [`EngineOption::HybridIopoll`], which is nothing without `iopoll`.
    pub hybrid: bool,
    /// [`EngineOption::Sqpoll`].
    pub sqpoll: bool,
    /// [`EngineOption::SqpollIdle`] in milliseconds; the kernel's own default is one second.
    pub sqpoll_idle_ms: Option<u32>,
    /// [`EngineOption::SqpollCpu`].
    pub sqpoll_cpu: Option<u32>,
    /// [`EngineOption::NoFixed`].
    pub no_fixed: bool,
    /// [`EngineOption::Batch`].
    pub batch: Option<u32>,
    /// [`EngineOption::Buffered`].
    pub buffered: bool,
    /// [`EngineOption::Doorbell`]; the default is the mode's own.
    pub doorbell: Option<DoorbellMode>,
    /// [`EngineOption::Sgl`].
    pub sgl: bool,
    /// [`EngineOption::Pi`]; the default is the mode's own.
    pub pi: Option<ProtectionMode>,
    /// [`EngineOption::ShadowDoorbells`].
    pub shadow_doorbells: bool,
}

impl EngineOptions {
    /// Whether `option` is set.
    pub const fn has(&self, option: EngineOption) -> bool {
        match option {
            EngineOption::Iopoll => self.iopoll,
            EngineOption::HybridIopoll => self.hybrid,
            EngineOption::Sqpoll => self.sqpoll,
            EngineOption::SqpollIdle => self.sqpoll_idle_ms.is_some(),
            EngineOption::SqpollCpu => self.sqpoll_cpu.is_some(),
            EngineOption::NoFixed => self.no_fixed,
            EngineOption::Batch => self.batch.is_some(),
            EngineOption::Buffered => self.buffered,
            EngineOption::Doorbell => self.doorbell.is_some(),
            EngineOption::Sgl => self.sgl,
            EngineOption::Pi => self.pi.is_some(),
            EngineOption::ShadowDoorbells => self.shadow_doorbells,
        }
    }

    /// Sets what hangs on another option: hybrid polling is polling, an idle time is a thread's.
    #[must_use]
    pub const fn completed(mut self) -> Self {
        self.iopoll |= self.hybrid;
        self.sqpoll |= self.sqpoll_idle_ms.is_some() || self.sqpoll_cpu.is_some();
        self
    }

    /// These, and of `others` what `engine` has and these do not say.
    #[must_use]
    pub fn with(self, others: &Self, engine: &EngineInfo) -> Self {
        let may = |option| engine.options.contains(&option);
        Self {
            iopoll: self.iopoll || others.iopoll && may(EngineOption::Iopoll),
            hybrid: self.hybrid || others.hybrid && may(EngineOption::HybridIopoll),
            sqpoll: self.sqpoll || others.sqpoll && may(EngineOption::Sqpoll),
            sqpoll_idle_ms: self
                .sqpoll_idle_ms
                .or(others.sqpoll_idle_ms.filter(|_| may(EngineOption::SqpollIdle))),
            sqpoll_cpu: self
                .sqpoll_cpu
                .or(others.sqpoll_cpu.filter(|_| may(EngineOption::SqpollCpu))),
            no_fixed: self.no_fixed || others.no_fixed && may(EngineOption::NoFixed),
            batch: self.batch.or(others.batch.filter(|_| may(EngineOption::Batch))),
            buffered: self.buffered || others.buffered && may(EngineOption::Buffered),
            doorbell: self.doorbell.or(others.doorbell.filter(|_| may(EngineOption::Doorbell))),
            sgl: self.sgl || others.sgl && may(EngineOption::Sgl),
            pi: self.pi.or(others.pi.filter(|_| may(EngineOption::Pi))),
            shadow_doorbells: self.shadow_doorbells
                || others.shadow_doorbells && may(EngineOption::ShadowDoorbells),
        }
        .completed()
    }

    fn set(&mut self, text: &str, engine: &EngineInfo) -> Result<(), String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let option = EngineOption::from_name(name)
            .filter(|option| engine.options.contains(option))
            .ok_or_else(|| {
                let (engine_name, has) = (engine.name, EngineOption::list(engine));
                format!("engine {engine_name} has no option \"{name}\"; {has}")
            })?;
        let number = |min: u32, max: u32, what: &str| {
            let number = value.and_then(|value| value.parse::<u32>().ok());
            number.filter(|number| (min..=max).contains(number)).ok_or_else(|| {
                format!("{name} needs {what} from {min} to {max}, as in {name}={}", min.max(1))
            })
        };
        match option {
            EngineOption::SqpollIdle => {
                let ms = number(1, SQPOLL_IDLE_MS_MAX, "a number of milliseconds")?;
                self.sqpoll_idle_ms = Some(ms);
            }
            EngineOption::SqpollCpu => {
                self.sqpoll_cpu = Some(number(0, u32::MAX >> 1, "a processor's number")?);
            }
            EngineOption::Batch => {
                self.batch = Some(number(1, BATCH_MAX, "a number of I/Os")?);
            }
            EngineOption::Doorbell => {
                let mode = value.ok_or_else(|| format!("{name} needs a value, as in {name}=each"));
                self.doorbell = Some(mode?.parse()?);
            }
            EngineOption::Pi => {
                let mode = value.ok_or_else(|| format!("{name} needs a value, as in {name}=host"));
                self.pi = Some(mode?.parse()?);
            }
            _ if value.is_some() => return Err(format!("{name} takes no value")),
            EngineOption::Iopoll => self.iopoll = true,
            EngineOption::HybridIopoll => self.hybrid = true,
            EngineOption::Sqpoll => self.sqpoll = true,
            EngineOption::NoFixed => self.no_fixed = true,
            EngineOption::Buffered => self.buffered = true,
            EngineOption::Sgl => self.sgl = true,
            EngineOption::ShadowDoorbells => self.shadow_doorbells = true,
        }
        *self = self.completed();
        Ok(())
    }

    /// Each option as it is written, with what only follows from another left out.
    fn words(&self) -> Vec<String> {
        let word = |option: EngineOption| {
            let name = option.name();
            match option {
                EngineOption::Iopoll if self.hybrid => None,
                EngineOption::Sqpoll if self.sqpoll_idle_ms.or(self.sqpoll_cpu).is_some() => None,
                EngineOption::SqpollIdle => self.sqpoll_idle_ms.map(|ms| format!("{name}={ms}")),
                EngineOption::SqpollCpu => self.sqpoll_cpu.map(|cpu| format!("{name}={cpu}")),
                EngineOption::Batch => self.batch.map(|batch| format!("{name}={batch}")),
                EngineOption::Doorbell => self.doorbell.map(|mode| format!("{name}={mode}")),
                EngineOption::Pi => self.pi.map(|mode| format!("{name}={mode}")),
                option => self.has(option).then(|| name.to_owned()),
            }
        };
        EngineOption::ALL.into_iter().filter_map(word).collect()
    }
}

impl fmt::Display for EngineOptions {
    /// `iopoll, batch=8`; nothing for the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(", "))
    }
}

/// An engine with its options, as on the command line: `io_uring:iopoll+batch=8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineChoice {
    /// The engine.
    pub kind: EngineKind,
    /// How it is told to run.
    pub options: EngineOptions,
}

impl EngineChoice {
    /// Column heading in a report: `Linux io_uring (iopoll)`.
    pub fn stack(&self) -> String {
        let stack = self.kind.info().stack;
        match self.options.to_string() {
            options if options.is_empty() => stack.to_owned(),
            options => format!("{stack} ({options})"),
        }
    }
}

impl From<EngineKind> for EngineChoice {
    fn from(kind: EngineKind) -> Self {
        Self { kind, options: EngineOptions::default() }
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.options.words();
        let colon = if words.is_empty() { "" } else { ":" };
        f.pad(&format!("{}{colon}{}", self.kind.info().name, words.join("+")))
    }
}

/// Text that is no engine with options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEngine {
    /// No engine of this build.
    #[error(transparent)]
    Unknown(#[from] UnknownEngine),
    /// An option that it does not have, or a value that the option does not take.
    #[error("{0}")]
    Option(String),
}

impl FromStr for EngineChoice {
    type Err = BadEngine;

    fn from_str(text: &str) -> Result<Self, BadEngine> {
        let (name, words) = match text.split_once(':') {
            Some((name, words)) => (name, Some(words)),
            None => (text, None),
        };
        let kind: EngineKind = name.parse()?;
        let mut choice = Self::from(kind);
        for word in words.into_iter().flat_map(|words| words.split('+')) {
            choice.options.set(word, kind.info()).map_err(BadEngine::Option)?;
        }
        Ok(choice)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn parse(text: &str) -> EngineChoice {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_written_is_read_back() {
        for text in [
            "null",
            "io_uring",
            "io_uring:iopoll",
            "io_uring:hybrid-iopoll",
            "io_uring:iopoll+no-fixed+batch=8",
            "io_uring:sqpoll",
            "io_uring:sqpoll-idle=50+sqpoll-cpu=0",
            "psync:iopoll",
            "libaio:batch=4+buffered",
            "soft:doorbell=each",
            "vfio:doorbell=batch",
            "vfio:sgl",
            "soft:doorbell=each+sgl",
            "vfio:pi=host",
            "soft:sgl+pi=controller",
        ] {
            assert_eq!(parse(text).to_string(), text);
        }
        assert_eq!(parse("io_uring:hipri"), parse("io_uring:iopoll"));
        assert_eq!(parse("io_uring:sqthread_poll"), parse("io_uring:sqpoll"));
        assert!(parse("io_uring:hybrid-iopoll").options.iopoll);
        assert!(parse("io_uring:sqpoll-cpu=1").options.sqpoll);
        let stack = parse("io_uring:iopoll+batch=8").stack();
        assert_eq!(stack, "Linux io_uring (iopoll, batch=8)");
        assert_eq!(parse("io_uring").stack(), "Linux io_uring");
    }

    #[test]
    fn what_an_engine_does_not_have_is_refused() {
        for (text, word) in [
            ("spdk", "no engine is called"),
            ("io_uring:", "no option \"\""),
            ("io_uring:fast", "it has iopoll"),
            ("psync:sqpoll", "engine psync has no option \"sqpoll\""),
            ("null:iopoll", "it has none"),
            ("io_uring:batch", "batch needs a number"),
            ("io_uring:batch=0", "from 1 to"),
            ("io_uring:iopoll=1", "takes no value"),
            ("io_uring:doorbell=each", "has no option \"doorbell\""),
            ("vfio:doorbell", "doorbell=each"),
            ("psync:sgl", "has no option \"sgl\""),
            ("vfio:sgl=1", "takes no value"),
            ("vfio:pi", "pi=host"),
            ("vfio:pi=drive", "there are controller, host"),
            ("io_uring:pi=host", "has no option \"pi\""),
            ("vfio:doorbell=twice", "there are batch, each"),
            ("io_uring:sqpoll-idle=4000000000", "milliseconds"),
        ] {
            let error = text.parse::<EngineChoice>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn flags_go_to_those_that_have_them() {
        let flags = EngineOptions { iopoll: true, batch: Some(4), ..EngineOptions::default() };
        let with = |text| {
            let EngineChoice { kind, options } = parse(text);
            options.with(&flags, kind.info()).to_string()
        };
        assert_eq!(with("io_uring"), "iopoll, batch=4");
        assert_eq!(with("io_uring:batch=2"), "iopoll, batch=2");
        assert_eq!(with("psync"), "iopoll");
        assert_eq!(with("null"), "");
        assert_eq!(with("soft:doorbell=each"), "doorbell=each");
    }
}
