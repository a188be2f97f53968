//! Promises that need a target of a certain make.

use crate::cases::{Case, SIZE_BYTES, folder_on_disk, note, scratch_file};
use crate::lane::{Lane, open, open_as, read};
use crate::system::{LoopDevice, ZramDevice, spawning};
use nvpoll_engine::{
    CautionKind, Engine, EngineError, EngineKind, IoStatus, OpenOptions, SoftOptions, Target,
    Visitor, Wait,
};
use std::fs::OpenOptions as FileOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PAGE: u32 = 4096;

/// Runs `$check` for each engine that drives a path.
macro_rules! for_each_kernel_engine {
    ($check:ident, $argument:expr) => {{
        struct Check<'a>(&'a Path);
        impl Visitor for Check<'_> {
            type Output = ();
            fn visit<E: Engine>(self) {
                let name = E::INFO.name;
                if E::INFO.takes_drive() || matches!(name, "null" | "soft" | "io_uring_cmd") {
                    return;
                }
                match E::available() {
                    Ok(()) => $check::<E>(self.0),
                    Err(reason) => note(format!("{name} is not tested here: {reason}")),
                }
            }
        }
        let argument: PathBuf = $argument;
        for kind in EngineKind::ALL {
            kind.with(Check(&argument));
        }
    }};
}

fn loop_device(options: &[&str], prepare: fn(&Path)) -> Option<LoopDevice> {
    LoopDevice::with(options, prepare)
        .map_err(|reason| note(format!("what needs a loop device is not tested here: {reason}")))
        .ok()
}

#[test]
fn nonsense_is_refused_with_what_was_seen_and_what_to_do() {
    struct Refuses(PathBuf);
    impl Visitor for Refuses {
        type Output = ();

        fn visit<E: Engine>(self) {
            let name = E::INFO.name;
            let empty = self.0.join("empty");
            std::fs::write(&empty, []).unwrap();
            let pipe = self.0.join(format!("pipe-{name}"));
            nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
            let paths = ["/nonexistent/drive", "/", "/dev/null", "", "/dev/ng99n1", "\0"];
            let mut targets: Vec<_> = paths.iter().map(|path| Target::Path(path.into())).collect();
            targets.extend([Target::Path(empty), Target::Path(pipe)]);
            targets.push(Target::Pci("ffff:ff:1f.7".parse().unwrap()));
            if name != "null" {
                targets.push(Target::Null);
            }
            if name != "soft" {
                targets.push(Target::Soft(SoftOptions::default()));
            }
            for target in targets {
                for writable in [false, true] {
                    let options = OpenOptions { writable, ..OpenOptions::default() };
                    let error = match E::open(&target, &options) {
                        Ok(_) => panic!("{name} opened {target}"),
                        Err(error) => error.to_string(),
                    };
                    assert!(!error.contains('\n'), "{name}: more than a line: {error}");
                    assert!(error.contains("; "), "{name}: no advice on {target}: {error}");
                }
            }
        }
    }
    for kind in EngineKind::ALL {
        kind.with(Refuses(folder_on_disk().path().to_owned()));
    }
}

#[test]
fn io_in_flight_runs_side_by_side_and_is_not_waited_for() {
    struct Slow;
    impl Visitor for Slow {
        type Output = ();

        fn visit<E: Engine>(self) {
            if E::INFO.name != "soft" {
                return;
            }
            let latency = Duration::from_millis(150);
            let text = "soft:size=16m,latency=150ms";
            let options: SoftOptions = text.parse().unwrap();
            let case = Case::new(E::INFO.name, text, Target::Soft(options));
            let engine: E = open(&case);
            let mut lane = Lane::new(&case, &engine, 32, PAGE);
            let start = Instant::now();
            for tag in 0..lane.depth {
                lane.push(tag, read(u64::from(tag) * u64::from(PAGE), PAGE));
            }
            lane.kick();
            assert!(lane.reap(Wait::No).is_empty(), "done in {:?}", start.elapsed());
            assert!(start.elapsed() < latency, "kick or reap waited: {:?}", start.elapsed());
            assert_eq!(lane.finish().len(), 32);
            let elapsed = start.elapsed();
            assert!(elapsed >= latency && elapsed < latency * 16, "{elapsed:?} for 32 at once");
        }
    }
    for kind in EngineKind::ALL {
        kind.with(Slow);
    }
}

#[test]
fn a_file_that_shrinks_gives_short_transfers() {
    fn check<E: Engine>(path: &Path) {
        let case = Case::new(E::INFO.name, "a shrinking file", Target::Path(path.into()));
        let file = FileOptions::new().write(true).open(path).unwrap();
        file.set_len(SIZE_BYTES).unwrap();
        let engine: E = open_as(&case, false);
        let mut lane = Lane::new(&case, &engine, 2, 4 * PAGE);
        file.set_len(2 * u64::from(PAGE)).unwrap();
        assert_eq!(lane.run(0, read(u64::from(PAGE), 4 * PAGE)), IoStatus::SHORT, "{}", case.name);
        assert_eq!(lane.run(0, read(1 << 20, PAGE)), IoStatus::SHORT, "{}", case.name);
        lane.must(0, read(u64::from(PAGE), PAGE));
    }
    let folder = folder_on_disk();
    for_each_kernel_engine!(check, scratch_file(folder.path()));
}

#[test]
fn a_device_that_somebody_holds_is_not_written_and_is_free_again_at_once() {
    fn check<E: Engine>(node: &Path) {
        let case = Case::new(E::INFO.name, node.display(), Target::Path(node.into()));
        // Many times: a ring is torn down in a worker, later than its descriptor is closed.
        for _ in 0..40 {
            let engine: E = open(&case);
            let mut lane = Lane::new(&case, &engine, 8, PAGE);
            lane.must(0, read(0, PAGE));
            let writing = OpenOptions { writable: true, ..OpenOptions::default() };
            match E::open(&case.target, &writing) {
                Err(EngineError::Usage(text)) => {
                    assert!(text.contains("mounted, or held"), "{text}")
                }
                Err(other) => panic!("{}: {other:?}", case.name),
                Ok(_) => panic!("{}: opened for writing twice", case.name),
            }
            assert!(E::open(&case.target, &OpenOptions::default()).is_ok(), "reading harms nobody");
            drop(lane);
            drop(engine);
        }
    }
    if let Some(device) = loop_device(&[], |_| ()) {
        let _quiet = spawning();
        for_each_kernel_engine!(check, device.node.clone());
    }
}

#[test]
fn io_that_the_kernels_workers_do_is_found_and_said() {
    const DEPTH: u16 = 32;
    struct Reads<'a>(&'a Path, bool);
    impl Visitor for Reads<'_> {
        type Output = ();

        fn visit<E: Engine>(self) {
            if E::INFO.name != "io_uring" {
                return;
            }
            let Self(path, has_workers) = self;
            let options = if has_workers { &["", "batch=8", "no-fixed"][..] } else { &[""] };
            for options in options.iter().copied() {
                let case = Case::new("io_uring", path.display(), Target::Path(path.into()));
                let case = if options.is_empty() { case } else { case.with("io_uring", options) };
                let engine: E = open(&case);
                let mut lane = Lane::new(&case, &engine, DEPTH.into(), PAGE);
                for tag in 0..DEPTH {
                    lane.put(tag, u64::from(tag) * u64::from(PAGE), &[tag as u8 + 1; 4096]);
                }
                for round in 0..200 {
                    for tag in 0..DEPTH {
                        let page = u64::from((tag + round) % DEPTH);
                        lane.push(tag, read(page * u64::from(PAGE), PAGE));
                    }
                    // Whole rounds, and ones of which a part is looked for without waiting.
                    let early = if round % 2 == 0 { lane.reap(Wait::No).len() } else { 0 };
                    assert_eq!(early + lane.finish().len(), usize::from(DEPTH), "{}", case.name);
                }
                for tag in 0..DEPTH {
                    lane.expect(tag, u64::from(tag) * u64::from(PAGE), &[tag as u8 + 1; 4096], "");
                }
                let facts = engine.facts();
                let fact = |name| facts.iter().find(|(known, _)| *known == name);
                let (_, flags) = fact("ring flags").unwrap();
                assert_eq!(fact("submission").is_some(), has_workers, "{facts:?}");
                assert_eq!(flags.contains("deferred task run"), !has_workers, "{flags}");
                let kinds: Vec<_> = engine.cautions().iter().map(|one| one.kind).collect();
                assert_eq!(kinds.contains(&CautionKind::Workers), has_workers, "{kinds:?}");
            }
        }
    }
    let folder = folder_on_disk();
    let file = scratch_file(folder.path());
    let kinds = EngineKind::ALL;
    kinds.iter().for_each(|kind| kind.with(Reads(&file, false)));
    match ZramDevice::new() {
        Ok(device) => kinds.iter().for_each(|kind| kind.with(Reads(&device.node, true))),
        Err(reason) => note(format!("I/O by the kernel's workers is not tested here: {reason}")),
    }
}

#[test]
fn a_partition_is_refused_by_the_name_of_its_drive() {
    fn check<E: Engine>(node: &Path) {
        let partition = PathBuf::from(format!("{}p1", node.display()));
        let deadline = Instant::now() + Duration::from_secs(5);
        while !partition.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        if !partition.exists() {
            return note(format!(
                "{} did not appear; partitions are not tested",
                partition.display()
            ));
        }
        let error = match E::open(&Target::Path(partition), &OpenOptions::default()) {
            Ok(_) => panic!("{} opened a partition", E::INFO.name),
            Err(error) => error.to_string(),
        };
        let wanted = format!("is a partition of {}", node.display());
        assert!(error.contains(&wanted), "{error}");
    }
    /// A master boot record with one Linux partition of 1 MiB at 1 MiB.
    fn partition(path: &Path) {
        let mut record = [0; 512];
        record[446 + 4] = 0x83;
        record[446 + 8..446 + 16].copy_from_slice(&[0, 8, 0, 0, 0, 8, 0, 0]);
        record[510..].copy_from_slice(&[0x55, 0xaa]);
        FileOptions::new().write(true).open(path).unwrap().write_all_at(&record, 0).unwrap();
    }
    if let Some(device) = loop_device(&["--partscan"], partition) {
        for_each_kernel_engine!(check, device.node.clone());
    }
}

#[test]
fn buffers_beyond_the_locked_memory_limit_are_used_unpinned_and_that_is_said() {
    const CHILD: &str = "NVPOLL_CONTRACT_MEMLOCK_CHILD";
    const NAME: &str =
        "kernel::buffers_beyond_the_locked_memory_limit_are_used_unpinned_and_that_is_said";
    const NOBODY: u32 = 65534;
    if let Some(path) = std::env::var_os(CHILD) {
        return with_little_locked_memory(path.into());
    }
    let folder = folder_on_disk();
    let file = scratch_file(folder.path());
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", NAME, "--nocapture"]).env(CHILD, &file);
    if nix::unistd::geteuid().is_root() {
        // Root may lock what it likes.
        use std::os::unix::process::CommandExt;
        for path in [folder.path(), &file] {
            std::os::unix::fs::chown(path, Some(NOBODY), None).unwrap();
        }
        child.uid(NOBODY).gid(NOBODY);
    }
    let _spawning = spawning();
    match child.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
        }
        Err(error) => note(format!("the locked memory limit is not tested here: {error}")),
    }
}

/// Runs in a process of its own, which the limit is lowered for.
fn with_little_locked_memory(path: PathBuf) {
    use nix::sys::resource::{Resource, setrlimit};
    setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, 64 << 10).unwrap();
    fn check<E: Engine>(path: &Path) {
        let case = Case::new(E::INFO.name, "a file", Target::Path(path.into()));
        let engine: E = open(&case);
        let mut lane = Lane::new(&case, &engine, 64, 16 * PAGE);
        lane.put(0, 0, &[0x42; 4096]);
        lane.expect(0, 0, &[0x42; 4096], "without pinned buffers");
        if E::INFO.name == "io_uring" {
            let facts = engine.facts();
            let (_, said) = facts.iter().find(|(name, _)| *name == "fixed buffers").unwrap();
            let needed = 64 * 16 * PAGE;
            assert!(said.starts_with("no (") && said.contains(&needed.to_string()), "{said}");
            assert!(said.contains("65536 bytes"), "{said}");
        }
    }
    for_each_kernel_engine!(check, path);
}
