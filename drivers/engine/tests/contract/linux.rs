//! The targets that only Linux has: loop and zram devices, generic NVMe devices, PCI functions.

use crate::cases::{Case, SIZE_BYTES, folder_on_disk, listed, note, scratch_file};
use nvpoll_engine::Target;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The targets of `engine`, where they are neither files nor block devices; `driver` is the one that
/// hands a drive over.
pub fn cases(engine: &str, driver: Option<&str>) -> Option<Vec<Case>> {
    match engine {
        "io_uring_cmd" => Some(generic(engine)),
        _ => driver.map(|driver| drives(engine, driver)),
    }
}

/// Block devices that are made for the test.
pub fn made(engine: &str) -> Vec<Case> {
    let on_loop = LoopDevice::new().map(|device| {
        let target = Target::Path(device.node.clone());
        Case::new(engine, "a loop device", target).kept_by(device)
    });
    let on_zram = ZramDevice::new().map(|device| {
        let target = Target::Path(device.node.clone());
        Case::new(engine, "a zram device", target).kept_by(device)
    });
    let said = |(what, made): (&str, Result<Case, String>)| {
        made.map_err(|reason| note(format!("{engine} is not tested on a {what} device: {reason}")))
    };
    [("loop", on_loop), ("zram", on_zram)].into_iter().filter_map(|made| said(made).ok()).collect()
}

fn drives(engine: &str, driver: &str) -> Vec<Case> {
    let named = listed("NVPOLL_CONTRACT_DRIVES");
    let address = |text: &String| text.parse().unwrap_or_else(|_| panic!("no PCI address: {text}"));
    let cases: Vec<Case> = named
        .iter()
        .map(|text| (text, address(text)))
        .filter(|(_, address)| nvpoll_pci::driver_of(*address).as_deref() == Some(driver))
        .map(|(text, address)| Case::new(engine, text, Target::Pci(address)).shared())
        .collect();
    if cases.is_empty() {
        note(format!(
            "{engine} is not held to its contract here: it needs a drive that may be wiped; set \
             NVPOLL_CONTRACT_DRIVES to PCI addresses that are bound to {}",
            driver
        ));
    }
    cases
}

/// Generic NVMe devices, and what of them can be polled.
fn generic(engine: &str) -> Vec<Case> {
    let named = listed("NVPOLL_CONTRACT_GENERIC");
    if named.is_empty() {
        note(format!(
            "{engine} is not held to its contract here: it needs a drive that may be wiped; set \
             NVPOLL_CONTRACT_GENERIC to devices such as /dev/ng0n1"
        ));
    }
    let case = |node: &String| Case::new(engine, node, Target::Path(node.into())).shared();
    let plain = named.iter().map(case);
    plain.chain(named.iter().map(|node| case(node).with(engine, "iopoll+batch=4"))).collect()
}

/// Held by whoever starts a program, and by a test that nobody may start one beside: between its
/// fork and its exec a child has all descriptors of this process open.
pub fn spawning() -> MutexGuard<'static, ()> {
    static SPAWNING: Mutex<()> = Mutex::new(());
    SPAWNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A loop device over a file of its own.
pub struct LoopDevice {
    pub node: PathBuf,
    _folder: tempfile::TempDir,
}

impl LoopDevice {
    /// # Errors
    /// Why there is none, where this user may not make one.
    pub fn new() -> Result<Self, String> {
        Self::with(&[], |_| ())
    }

    /// With further options to losetup, over a file that `prepare` has seen.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with(options: &[&str], prepare: fn(&Path)) -> Result<Self, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err("that takes root".to_owned());
        }
        let folder = folder_on_disk();
        let file = scratch_file(folder.path());
        prepare(&file);
        // Another program that looks for a free device at the same time may find the same one.
        let _spawning = spawning();
        let mut said = String::new();
        for _ in 0..20 {
            let output = Command::new("losetup")
                .args(["--find", "--show", "--direct-io=on"])
                .args(options)
                .arg(&file)
                .output()
                .map_err(|error| format!("losetup does not run: {error}"))?;
            if output.status.success() {
                let node = String::from_utf8_lossy(&output.stdout).trim().into();
                return Ok(Self { node, _folder: folder });
            }
            said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Err(format!("losetup failed: {said}"))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _spawning = spawning();
        let detached = Command::new("losetup").arg("--detach").arg(&self.node).status();
        if !detached.is_ok_and(|status| status.success()) {
            note(format!("{} could not be detached", self.node.display()));
        }
    }
}

/// A compressed RAM disk, which takes no I/O that must not wait (`RWF_NOWAIT`).
pub struct ZramDevice {
    pub node: PathBuf,
    number: String,
}

/// Where zram devices are made and removed (Documentation/admin-guide/blockdev/zram.rst).
const ZRAM_CONTROL: &str = "/sys/class/zram-control";

impl ZramDevice {
    /// # Errors
    /// Why there is none, where this user may not make one or the kernel has no zram.
    pub fn new() -> Result<Self, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err("that takes root".to_owned());
        }
        let number = std::fs::read_to_string(format!("{ZRAM_CONTROL}/hot_add"))
            .map_err(|error| format!("{ZRAM_CONTROL}/hot_add: {error}; `modprobe zram`"))?;
        let number = number.trim().to_owned();
        let device = Self { node: format!("/dev/zram{number}").into(), number };
        let size = format!("/sys/block/zram{}/disksize", device.number);
        std::fs::write(&size, SIZE_BYTES.to_string())
            .map_err(|error| format!("{size}: {error}"))?;
        // The node is made by devtmpfs, before the number is there to read.
        match device.node.exists() {
            true => Ok(device),
            false => Err(format!("{} did not appear", device.node.display())),
        }
    }
}

impl Drop for ZramDevice {
    fn drop(&mut self) {
        // A ring's hold on the device ends a little after the ring; so may somebody's look at it.
        let deadline = Instant::now() + Duration::from_secs(5);
        while std::fs::write(format!("{ZRAM_CONTROL}/hot_remove"), &self.number).is_err() {
            if Instant::now() > deadline {
                return note(format!("{} could not be removed", self.node.display()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
