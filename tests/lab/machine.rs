//! The lab machine, as tests use it.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// What `tools/lab/lab` says of a machine that failed by QEMU's own fault.
const QEMUS_OWN: [&str; 2] = ["iotlb_to_section", "the machine itself does not answer"];

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The guest's nvpoll and the pattern example, static, built once a test run.
pub fn nvpoll() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build(&[]))
}

/// The example that writes and checks a pattern.
pub fn pattern() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let example = ["-p", "nvpoll-engine", "--example", "pattern"];
        build(&example).with_file_name("examples").join("pattern")
    })
}

/// The driver's example that sends the rarer commands.
pub fn commands() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let example = ["-p", "nvpoll-nvme", "--example", "commands"];
        build(&example).with_file_name("examples").join("commands")
    })
}

/// The engines' contract suite.
pub fn contract() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // A test's file name has a hash in it, which cargo tells in its messages.
        let test = ["-p", "nvpoll-engine", "--test", "contract"];
        let text = build_output(&[&test[..], &["--message-format=json"]].concat()).1;
        let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let path = messages
            .filter(|message| message["target"]["name"] == "contract")
            .find_map(|message| message["executable"].as_str().map(PathBuf::from));
        path.expect("cargo names the test's executable")
    })
}

fn build(arguments: &[&str]) -> PathBuf {
    PathBuf::from(build_output(arguments).0.trim())
}

/// What the build printed: the path of nvpoll, and cargo's messages.
fn build_output(arguments: &[&str]) -> (String, String) {
    let output = Command::new(root().join("tools/lab/build-guest-binary"))
        .args(arguments)
        .output()
        .expect("tools/lab/build-guest-binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// One boot.
pub struct Lab {
    arguments: Vec<String>,
    folder: tempfile::TempDir,
}

/// What came of it.
pub struct Ran {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
    /// The guest kernel's log.
    pub log: String,
}

impl Lab {
    /// A machine with nvpoll on it and no drive yet.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let lab = Self { arguments: Vec::new(), folder };
        lab.with("--binary", &format!("{}=nvpoll", nvpoll().display()))
    }

    /// Another option of `tools/lab/lab`.
    pub fn with(mut self, option: &str, value: &str) -> Self {
        self.arguments.extend([option.to_owned(), value.to_owned()]);
        self
    }

    /// One that has no value.
    pub fn flag(mut self, option: &str) -> Self {
        self.arguments.push(option.to_owned());
        self
    }

    /// A drive.
    pub fn drive(self, spec: &str) -> Self {
        self.with("--drive", spec)
    }

    /// A file in the test's own folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a script in the guest. Its first failing command ends it.
    ///
    /// Once in a while QEMU itself gives up, by an assertion of its own about address spaces that
    /// change while processors run (iotlb_to_section), or freezes so that not even the guest's first
    /// process answers; such a machine is started again, at most twice, with the images as they were.
    pub fn sh(&self, script: &str) -> Ran {
        let images = tempfile::tempdir().expect("a folder for copies");
        Self::copy_files(self.folder.path(), images.path());
        let mut ran = self.once(script);
        for _ in 0..2 {
            let is_qemus_own =
                ran.status == 125 && QEMUS_OWN.iter().any(|own| ran.stderr.contains(own));
            if !is_qemus_own {
                break;
            }
            Self::copy_files(images.path(), self.folder.path());
            ran = self.once(script);
        }
        assert_ne!(ran.status, 125, "the lab itself failed");
        ran
    }

    /// Copies the files in `from`, sparse as they are.
    fn copy_files(from: &Path, to: &Path) {
        let mut copy = Command::new("cp");
        copy.args(["--sparse=always", "--recursive", "--no-target-directory"]).args([from, to]);
        assert!(copy.status().expect("cp runs").success(), "the images could not be copied");
    }

    fn once(&self, script: &str) -> Ran {
        let log = self.path("dmesg");
        let output: Output = Command::new(root().join("tools/lab/lab"))
            .args(&self.arguments)
            .arg("--dmesg")
            .arg(&log)
            .args(["--timeout", "240", "--", "sh", "-euc", script])
            .output()
            .expect("tools/lab/lab runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let ran = Ran {
            status: output.status.code().unwrap_or(-1),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
            log: fs::read_to_string(&log).unwrap_or_default(),
        };
        // Shown when the test fails.
        println!("$ {script}\n{}{}status {}", ran.stdout, ran.stderr, ran.status);
        ran
    }
}

impl Ran {
    /// The script ended well, and no device reached for memory that was not mapped for it: QEMU
    /// completes such an access with success, so only the IOMMU's log shows it.
    #[track_caller]
    pub fn is_fine(&self) -> &Self {
        assert_eq!(self.status, 0, "the script failed");
        self.no_faults()
    }

    /// No DMA fault is in the kernel's log.
    #[track_caller]
    pub fn no_faults(&self) -> &Self {
        let faults: Vec<&str> =
            self.log.lines().filter(|line| line.contains("fault addr")).collect();
        assert!(!self.log.is_empty(), "no kernel log came out of the guest");
        assert!(faults.is_empty(), "DMA faults: {faults:?}");
        self
    }
}
