//! Registers whose device has gone from under their mapping. In a process of its own: loom, which
//! other tests of this crate run under, has a handler for SIGBUS too.

#![cfg(target_os = "linux")]

use memmap2::MmapRaw;
use nvpoll_mem::{Doorbell, MappedRegisters, Registers};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// A mapping of a file, of so many bytes, that can be cut to nothing: an access then raises SIGBUS, as
/// it does of a BAR whose pages the kernel has taken away.
fn mapped(name: &str, bytes: u64) -> (File, MmapRaw) {
    let path = std::env::temp_dir().join(format!("nvpoll-vanished-{name}-{}", std::process::id()));
    let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(bytes).unwrap();
    let map = MmapRaw::map_raw(&file).unwrap();
    (file, map)
}

#[test]
fn registers_that_vanish_read_as_all_ones() {
    let (file, map) = mapped("registers", 0x3000);
    let registers = MappedRegisters::new(map);
    let doorbell = registers.doorbell(0x1008).unwrap();
    doorbell.ring(5);
    assert_eq!(registers.read32(0x1008), Ok(5));
    file.set_len(0).unwrap();
    doorbell.ring(6);
    assert_eq!(registers.read64(0x1c), Ok(u64::MAX));
    registers.write32(0x2014, 0).unwrap();
    assert_eq!(registers.read32(0x2010), Ok(u32::MAX));
}

const INNER: &str = "NVPOLL_TEST_SIGBUS";

/// The signal ends the process where it is none of a BAR's.
#[test]
fn what_somebody_sends_ends_the_process_as_it_did() {
    if std::env::var_os(INNER).is_some() {
        let (file, map) = mapped("watched", 0x1000);
        let registers = MappedRegisters::new(map);
        file.set_len(0).unwrap();
        assert_eq!(registers.read32(0), Ok(u32::MAX));
        let process = std::process::id().to_string();
        assert!(Command::new("kill").args(["-BUS", &process]).status().unwrap().success());
        std::thread::sleep(std::time::Duration::from_secs(30));
        return;
    }
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_somebody_sends_ends_the_process_as_it_did"])
        .env(INNER, "1")
        .output()
        .unwrap();
    assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
}
