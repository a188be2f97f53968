//! The targets that each engine is held to its contract on.
//!
//! | engine | targets |
//! | --- | --- |
//! | `null` | nothing |
//! | `soft` | a stepped and a threaded soft controller, of 512 and 4096 byte blocks, also with protection information, by the controller and by the host |
//! | the kernel's | a file beside the test program, also with the engine's options; a loop and a zram device when run as root; the devices in `NVPOLL_CONTRACT_BLOCK`, also polled |
//! | `io_uring_cmd` | the generic NVMe devices in `NVPOLL_CONTRACT_GENERIC`, also polled |
//! | those that take a drive | the PCI functions in `NVPOLL_CONTRACT_DRIVES` that are bound to the engine's driver |
//!
//! These variables are lists separated by commas. **What they name is written to.** The files are
//! made beside the test program, or in the folder that `NVPOLL_CONTRACT_FOLDER` names, but for those
//! of the options then.
//! `NVPOLL_CONTRACT_ENGINES` leaves out all engines but those that it lists. Under VFIO,
//! `NVPOLL_CONTRACT_IOMMU` names the interface to the IOMMU, and `NVPOLL_CONTRACT_NO_IOMMU` accepts
//! that there is none; `NVPOLL_CONTRACT_WAIT` is the way of waiting. With `NVPOLL_CONTRACT_VERBOSE` each promise that was kept is said, with its
//! engine and target.

use crate::system;
use nvpoll_engine::{
    Engine, EngineChoice, EngineKind, EngineOptions, Target, TransportOptions, Visitor,
};
use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of the targets made here. No power of two and not a whole MiB, so that the end stands at
/// an odd place.
pub const SIZE_BYTES: u64 = (24 << 20) + 5 * 4096;

/// One promise of the contract.
pub trait Promise {
    /// Panics where `E` breaks it on `case`.
    fn check<E: Engine>(case: &Case);
}

/// A target that may be written to.
pub struct Case {
    /// Engine and target, for messages.
    pub name: String,
    /// What to open.
    pub target: Target,
    /// What was written can be read.
    pub keeps_data: bool,
    /// How a kernel engine runs.
    pub options: EngineOptions,
    /// Tests that run side by side may not share it.
    is_shared: bool,
    /// What keeps the target there.
    _keeper: Box<dyn Any + Sync>,
}

impl Case {
    pub fn new(engine: &str, what: impl fmt::Display, target: Target) -> Self {
        let name = format!("{engine} on {what}");
        let keeps_data = engine != "null";
        Self {
            name,
            target,
            keeps_data,
            options: EngineOptions::default(),
            is_shared: false,
            _keeper: Box::new(()),
        }
    }

    /// With `options` behind the engine's colon.
    pub fn with(mut self, engine: &str, options: &str) -> Self {
        let choice: EngineChoice = format!("{engine}:{options}").parse().unwrap();
        self.options = choice.options;
        self.name = format!("{options}, {}", self.name);
        self
    }

    pub fn kept_by(self, keeper: impl Any + Sync) -> Self {
        Self { _keeper: Box::new(keeper), ..self }
    }

    pub fn shared(self) -> Self {
        Self { is_shared: true, ..self }
    }
}

/// Runs promise `P` over every engine and each of its targets.
pub fn check_everywhere<P: Promise>() {
    struct Check<P>(std::marker::PhantomData<P>);
    impl<P: Promise> Visitor for Check<P> {
        type Output = ();

        fn visit<E: Engine>(self) {
            for case in cases_of::<E>() {
                let start = std::time::Instant::now();
                let alone = case.is_shared.then(alone);
                P::check::<E>(&case);
                drop(alone);
                if std::env::var_os("NVPOLL_CONTRACT_VERBOSE").is_some() {
                    let promise = std::any::type_name::<P>();
                    note(format!("{promise}, {}: kept, {:?}", case.name, start.elapsed()));
                }
            }
        }
    }
    for kind in EngineKind::ALL {
        kind.with(Check::<P>(std::marker::PhantomData));
    }
}

/// The targets of engine `E` on this machine.
pub fn cases_of<E: Engine>() -> Vec<Case> {
    let name = E::INFO.name;
    let only = listed("NVPOLL_CONTRACT_ENGINES");
    if !only.is_empty() && !only.iter().any(|engine| engine == name) {
        return Vec::new();
    }
    if let Err(reason) = E::available() {
        note(format!("{name} is not held to its contract here: {reason}"));
        return Vec::new();
    }
    match name {
        "null" => vec![Case::new(name, "nothing", Target::Null)],
        "soft" => soft(name),
        _ => system::cases(name, E::INFO.driver).unwrap_or_else(|| paths(name)),
    }
}

fn soft(name: &str) -> Vec<Case> {
    let case = |text: &str| {
        let mut options: nvpoll_engine::SoftOptions = text.parse().unwrap();
        options.size_bytes = SIZE_BYTES;
        Case::new(name, text, Target::Soft(options))
    };
    let plain = ["soft:stepped", "soft:lba=4096", "soft:lba=4096,stepped", "soft:mdts=8k"];
    let protected = ["soft:ms=8,pi=1,stepped", "soft:lba=4096,ms=64,mset=1,pi=3,mdts=8k"];
    let by_host = protected.map(|text| case(text).with(name, "pi=host"));
    plain.into_iter().chain(protected).map(case).chain(by_host).collect()
}

/// How drives are reached.
pub fn transport() -> TransportOptions {
    let iommu = std::env::var("NVPOLL_CONTRACT_IOMMU").unwrap_or_else(|_| "best".to_owned());
    let wait = std::env::var("NVPOLL_CONTRACT_WAIT").unwrap_or_else(|_| "poll".to_owned());
    TransportOptions {
        iommu: iommu.parse().unwrap_or_else(|error| panic!("NVPOLL_CONTRACT_IOMMU: {error}")),
        allow_no_iommu: std::env::var_os("NVPOLL_CONTRACT_NO_IOMMU").is_some(),
        wait: wait.parse().unwrap_or_else(|error| panic!("NVPOLL_CONTRACT_WAIT: {error}")),
        ..TransportOptions::default()
    }
}

/// Options that each engine is also held to its contract with.
fn variants(engine: &str) -> &'static [&'static str] {
    match engine {
        "io_uring" => &["sqpoll-idle=50", "no-fixed+batch=8", "buffered+iopoll"],
        "libaio" => &["batch=8"],
        "psync" => &["iopoll"],
        _ => &[],
    }
}

fn paths(engine: &str) -> Vec<Case> {
    let folder = folder_on_disk();
    let file = scratch_file(folder.path());
    let mut cases = vec![Case::new(engine, "a file", Target::Path(file)).kept_by(folder)];
    // Each has a file of its own to write first, which takes long on an emulated machine; there the
    // devices stand for them.
    let has_folder = std::env::var_os("NVPOLL_CONTRACT_FOLDER").is_some();
    for options in variants(engine).iter().filter(|_| !has_folder) {
        let folder = folder_on_disk();
        let target = Target::Path(scratch_file(folder.path()));
        cases.push(Case::new(engine, "a file", target).with(engine, options).kept_by(folder));
    }
    cases.extend(system::made(engine));
    cases.extend(
        listed("NVPOLL_CONTRACT_BLOCK")
            .iter()
            .map(|node| Case::new(engine, node, Target::Path(PathBuf::from(node))).shared()),
    );
    if engine == "io_uring" {
        for (node, options) in listed("NVPOLL_CONTRACT_BLOCK")
            .iter()
            .flat_map(|node| ["iopoll", "iopoll+sqpoll"].map(|options| (node.clone(), options)))
        {
            let case = Case::new(engine, &node, Target::Path(PathBuf::from(&node)));
            cases.push(case.with(engine, options).shared());
        }
    }
    cases
}

pub fn listed(variable: &str) -> Vec<String> {
    let text = std::env::var(variable).unwrap_or_default();
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Keeps the tests, which run side by side, from sharing one drive.
fn alone() -> MutexGuard<'static, ()> {
    static DRIVES: Mutex<()> = Mutex::new(());
    DRIVES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says `text` once, past the capture of the test harness.
pub fn note(text: String) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if !said.contains(&text) {
        let _ = writeln!(std::io::stderr(), "contract: {text}");
        said.insert(text);
    }
}

/// A folder beside the test program, which is on a disk where the usual place for temporary files
/// may be a tmpfs.
pub fn folder_on_disk() -> tempfile::TempDir {
    let named = std::env::var_os("NVPOLL_CONTRACT_FOLDER");
    tempfile::tempdir_in(named.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into())).unwrap()
}

/// A file of [`SIZE_BYTES`], none of it a hole.
pub fn scratch_file(folder: &Path) -> PathBuf {
    let path = folder.join("scratch");
    let mut file = File::create(&path).unwrap();
    let chunk = vec![0x11; 1 << 20];
    let mut left = SIZE_BYTES;
    while left > 0 {
        let bytes = left.min(chunk.len() as u64);
        file.write_all(&chunk[..bytes as usize]).unwrap();
        left -= bytes;
    }
    file.sync_all().unwrap();
    path
}
