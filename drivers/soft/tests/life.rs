//! Starting, stopping, and what is left behind.

mod common;

use common::*;
use nvpoll_mem::Doorbell;
use nvpoll_soft::{Backing, SoftController, SoftOptions};
use nvpoll_spec::{NvmOpcode, Status, SubmissionEntry};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn with_file(path: &std::path::Path, options: SoftOptions) -> SoftOptions {
    SoftOptions { backing: Backing::File(path.into()), ..options }
}

/// Dropped in the middle of commands, with doorbells that outlive it.
#[test]
fn a_busy_device_can_be_dropped() {
    for text in ["size=8M", "size=8M,latency=10s", "size=8M,iops=10"] {
        let mut host = Host::new(text.parse().unwrap());
        let mut pair = host.pair(1, 256);
        let buffer = host.buffer(4096);
        for cid in 0..200 {
            let entry = io(NvmOpcode::WRITE, 0, 8, buffer.iova(0), 0);
            pair.push(SubmissionEntry { cid, ..entry });
        }
        pair.ring();
        let start = Instant::now();
        let Host { controller, .. } = host;
        drop(controller);
        assert!(start.elapsed() < Duration::from_secs(2), "{text}: {:?}", start.elapsed());
        pair.sq_bell.ring(7);
        pair.cq_bell.ring(7);
    }
}

#[test]
fn a_stepped_device_that_was_dropped_does_nothing() {
    let mut host = Host::new(stepped("size=8M"));
    let mut pair = host.pair(1, 8);
    let Host { controller, .. } = host;
    drop(controller);
    pair.push(SubmissionEntry::io(NvmOpcode::FLUSH, 1, 0, 0));
    pair.ring();
    assert!(pair.take().is_none());
}

#[test]
fn its_thread_ends_with_it() {
    let weak = {
        let host = Host::new("size=8M".parse().unwrap());
        Arc::downgrade(&host.controller)
    };
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_file_keeps_what_was_written_and_only_grows() {
    for text in ["size=8M", "size=8M,stepped"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a,b=c.img");
        let data = pattern(5, 4096);
        let options = with_file(&path, text.parse().unwrap());
        {
            let mut host = Host::new(options.to_string().parse().unwrap());
            let mut pair = host.pair(1, 8);
            let buffer = host.buffer(4096);
            buffer.write(0, &data);
            assert_ok(pair.run(io(NvmOpcode::WRITE, 100, 8, buffer.iova(0), 0)));
            assert_ok(pair.run(SubmissionEntry::io(NvmOpcode::FLUSH, 1, 0, 0)));
        }
        let content = std::fs::read(&path).unwrap();
        assert_eq!(content.len(), 8 << 20);
        assert_eq!(content[100 * 512..][..4096], data);
        assert!(content[..100 * 512].iter().all(|byte| *byte == 0));
        // A smaller namespace over it leaves the file's length alone.
        let smaller = SoftOptions { size_bytes: 1 << 20, ..options };
        let mut host = Host::new(smaller);
        let mut pair = host.pair(1, 8);
        let buffer = host.buffer(4096);
        assert_ok(pair.run(io(NvmOpcode::READ, 100, 8, buffer.iova(0), 0)));
        let mut back = vec![0; 4096];
        buffer.read(0, &mut back);
        assert_eq!(back, data);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 8 << 20);
    }
}

/// The file is cut under the device: reads fail as a medium does, and are counted.
#[test]
fn a_backing_that_fails_is_a_media_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut host = Host::new(with_file(file.path(), stepped("size=8M")));
    let mut pair = host.pair(1, 8);
    let buffer = host.buffer(4096);
    file.as_file().set_len(4096).unwrap();
    assert_ok(pair.run(io(NvmOpcode::READ, 0, 8, buffer.iova(0), 0)));
    let failed = pair.run(io(NvmOpcode::READ, 8, 8, buffer.iova(0), 0));
    assert_eq!(failed.status(), Status::UNRECOVERED_READ, "and a retry may help");
    assert_eq!(host.controller.counters().media_errors, 1);
    assert_eq!(host.controller.counters().reads, 1);
}

#[test]
fn a_backing_that_cannot_be_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("no").join("such");
    let mut cases =
        vec![(directory.path().to_owned(), "no regular file"), (missing, "No such file")];
    if cfg!(target_os = "linux") {
        cases.push(("/dev/null".into(), "no regular file"));
    }
    for (path, reason) in cases {
        let error = SoftController::start(with_file(&path, stepped(""))).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert!(error.contains("name a regular file"), "{error}");
        assert!(!error.contains('\n'));
    }
}

/// A file past what the file system holds is an error at the start and not in the middle.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_cannot_grow_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = with_file(file.path(), stepped("size=1024t"));
    match SoftController::start(options) {
        Ok(_) => assert_eq!(file.as_file().metadata().unwrap().len(), 1 << 50),
        Err(error) => assert!(error.to_string().contains("cannot use"), "{error}"),
    }
}
