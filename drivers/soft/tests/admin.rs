//! The admin commands, and every way in which they can be wrong.

mod common;

use common::*;
use nvpoll_mem::Doorbell;
use nvpoll_soft::SoftController;
use nvpoll_spec::{
    Admin, AdminOpcode, Cns, ControllerIdentity, FeatureId, FormatSettings, LogId, NSID_ALL,
    NamespaceIdentity, NvmOpcode, SmartLog, Status, SubmissionEntry, ascii_field,
};
use zerocopy::FromBytes;

fn host(text: &str) -> Host {
    Host::new(stepped(text))
}

#[track_caller]
fn assert_status(host: &mut Host, entry: SubmissionEntry, expected: Status) {
    let completion = host.admin.run(entry);
    assert_eq!(code(completion), expected, "{entry:?}");
    assert!(completion.status().do_not_retry(), "{entry:?}: it would fail again");
}

#[test]
fn mdts_counts_the_least_pages() {
    for (text, log2) in [("mpsmin=16k", 3), ("mpsmin=16k,mdts=0", 0), ("mpsmin=8k,mdts=16k", 1)] {
        let controller = SoftController::start(stepped(text)).unwrap();
        let mut host = Host::over(controller, enabled().with_page_size(2), 8);
        let page = host.identify(Cns::CONTROLLER, 0).unwrap();
        let id = ControllerIdentity::read_from_bytes(&page).unwrap();
        assert_eq!(id.transfer_log2_max, log2, "{text}");
    }
}

#[test]
fn identify_controller() {
    let mut host = host("serial=ABC123,mdts=256k,queues=2");
    let page = host.identify(Cns::CONTROLLER, 0).unwrap();
    let id = ControllerIdentity::read_from_bytes(&page).unwrap();
    assert_eq!(ascii_field(&id.serial), Ok("ABC123"));
    assert_eq!(id.serial[6..], [b' '; 14]);
    assert_eq!(ascii_field(&id.model), Ok("nvpoll soft controller"));
    assert_eq!(id.transfer_bytes_max(4096), Some(256 << 10));
    assert_eq!(id.version().to_string(), "1.4");
    assert_eq!((id.sq_entry_log2, id.cq_entry_log2), (0x66, 0x44));
    assert_eq!((id.namespaces, id.nvm_commands, id.write_cache & 1, id.sgl), (1, 0x18d, 1, 2));
    assert_eq!((id.async_requests_z, id.error_entries_z, id.admin_commands), (3, 63, 1 << 1));
    let nqn = ascii_field(&id.subsystem_nqn).unwrap();
    assert!(nqn.starts_with("nqn.2014-08.org.nvmexpress:uuid:"), "{nqn}");
    assert_eq!(nqn.len(), 32 + 36, "{nqn}");
    let mut other = self::host("serial=ABC124");
    let other = other.identify(Cns::CONTROLLER, 0).unwrap();
    assert_ne!(page[768..1024], other[768..1024], "one name a serial number");
}

#[test]
fn identify_namespace() {
    let mut host = host("size=3G,lba=4096");
    let id = host.identify(Cns::NAMESPACE, 1).unwrap();
    let id = NamespaceIdentity::read_from_bytes(&id).unwrap();
    let blocks = 3 << 18;
    assert_eq!((id.blocks, id.capacity_blocks, id.used_blocks), (blocks, blocks, blocks));
    assert_eq!(id.format_in_use().map(|format| format.data_log2), Some(12));
    assert_eq!(id.media_bytes, [3 << 30, 0]);
    assert_eq!((id.formats_z, id.protection, id.metadata), (0, 0, 0));
    let list = host.identify(Cns::ACTIVE_NAMESPACES, 0).unwrap();
    assert_eq!(list[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert!(host.identify(Cns::ACTIVE_NAMESPACES, 1).unwrap().iter().all(|byte| *byte == 0));
    let descriptors = host.identify(Cns::DESCRIPTORS, 1).unwrap();
    assert_eq!(descriptors[..4], [2, 16, 0, 0]);
    assert_eq!(descriptors[4..20], id.nguid);
    assert!(descriptors[20..].iter().all(|byte| *byte == 0));
}

#[test]
fn identify_refuses() {
    let mut host = host("");
    let page = host.buffer(8192);
    for (cns, nsid, expected) in [
        (Cns::NAMESPACE, 0, Status::INVALID_NAMESPACE),
        (Cns::NAMESPACE, 2, Status::INVALID_NAMESPACE),
        (Cns::NAMESPACE, NSID_ALL, Status::INVALID_NAMESPACE),
        (Cns::DESCRIPTORS, 2, Status::INVALID_NAMESPACE),
        (Cns::ACTIVE_NAMESPACES, NSID_ALL, Status::INVALID_NAMESPACE),
        (Cns::ACTIVE_NAMESPACES, NSID_ALL - 1, Status::INVALID_NAMESPACE),
        (Cns(0x10), 0, Status::INVALID_FIELD),
    ] {
        let mut entry = Admin::identify(cns, nsid);
        entry.prp1 = page.iova(0);
        assert_status(&mut host, entry, expected);
    }
    // The page may lie askew across two, as any data may.
    let mut entry = Admin::identify(Cns::CONTROLLER, 0);
    (entry.prp1, entry.prp2) = (page.iova(0x804), page.iova(4096));
    assert_ok(host.admin.run(entry));
    let mut bytes = [0; 40];
    page.read(0x808 + 16, &mut bytes);
    assert_eq!(bytes[4..16], *b"nvpoll soft ", "the model, 24 bytes into the page");
    entry.prp1 += 2;
    assert_status(&mut host, entry, Status::INVALID_PRP_OFFSET);
    entry.flags = 0x40;
    assert_status(&mut host, entry, Status::INVALID_FIELD);
}

#[test]
fn unknown_commands_are_invalid_opcodes() {
    let mut host = host("");
    for opcode in [0x03, 0x0d, 0x10, 0x84, 0xc0, 0xff] {
        let entry = SubmissionEntry { opcode, ..SubmissionEntry::default() };
        assert_status(&mut host, entry, Status::INVALID_OPCODE);
    }
    let mut pair = host.pair(1, 8);
    for opcode in [NvmOpcode::WRITE_UNCORRECTABLE.0, 0x0d, 0x11, 0x7d, 0xff] {
        let completion = pair.run(SubmissionEntry::io(NvmOpcode(opcode), 1, 0, 0));
        assert_eq!(code(completion), Status::INVALID_OPCODE, "{opcode:#x}");
    }
}

#[test]
fn queue_creation_refuses() {
    let mut host = host("queues=4,mqes=64");
    let memory = host.buffer(65_536);
    let at = memory.iova(0);
    let cq = Admin::create_cq;
    let sq = Admin::create_sq;
    for (entry, expected) in [
        (cq(0, 7, at), Status::INVALID_QID),
        (cq(5, 7, at), Status::INVALID_QID),
        (cq(u16::MAX, 7, at), Status::INVALID_QID),
        (cq(1, 0, at), Status::INVALID_QUEUE_SIZE),
        (cq(1, 64, at), Status::INVALID_QUEUE_SIZE),
        (cq(1, u16::MAX, at), Status::INVALID_QUEUE_SIZE),
        (cq(1, 7, at + 64), Status::INVALID_PRP_OFFSET),
        (SubmissionEntry { cdw11: 0, ..cq(1, 7, at) }, Status::INVALID_FIELD),
        (SubmissionEntry { cdw11: 5 << 16 | 1, ..cq(1, 7, at) }, Status::INVALID_VECTOR),
        (sq(1, 7, at, 1), Status::INVALID_CQ),
        (sq(1, 7, at, 0), Status::INVALID_QID),
        (sq(1, 7, at, 5), Status::INVALID_QID),
    ] {
        assert_status(&mut host, entry, expected);
    }
    assert_ok(host.admin.run(cq(1, 63, at)));
    for (entry, expected) in [
        (cq(1, 7, at), Status::INVALID_QID),
        (sq(0, 7, at, 1), Status::INVALID_QID),
        (sq(5, 7, at, 1), Status::INVALID_QID),
        (sq(2, 0, at, 1), Status::INVALID_QUEUE_SIZE),
        (sq(2, 64, at, 1), Status::INVALID_QUEUE_SIZE),
        (sq(2, 7, at + 8, 1), Status::INVALID_PRP_OFFSET),
        (SubmissionEntry { cdw11: 1 << 16, ..sq(2, 7, at, 1) }, Status::INVALID_FIELD),
    ] {
        assert_status(&mut host, entry, expected);
    }
    assert_ok(host.admin.run(sq(2, 63, memory.iova(4096), 1)));
    assert_status(&mut host, sq(2, 63, memory.iova(4096), 1), Status::INVALID_QID);
}

/// Entry sizes may be zero when the controller is enabled, and count when a queue is created.
#[test]
fn queue_creation_wants_entry_sizes() {
    let controller = nvpoll_soft::SoftController::start(stepped("")).unwrap();
    let cc = enabled().with_sq_entry_log2(0).with_cq_entry_log2(0);
    let mut host = Host::over(controller, cc, 8);
    let memory = host.buffer(8192);
    let create = Admin::create_cq(1, 7, memory.iova(0));
    assert_status(&mut host, create, Status::INVALID_QUEUE_SIZE);
}

#[test]
fn queue_deletion_in_the_right_order_alone() {
    let mut host = host("queues=4");
    let memory = host.buffer(16_384);
    for (entry, expected) in [
        (Admin::delete_sq(0), Status::INVALID_QID),
        (Admin::delete_sq(1), Status::INVALID_QID),
        (Admin::delete_cq(0), Status::INVALID_QID),
        (Admin::delete_cq(1), Status::INVALID_QID),
        (Admin::delete_cq(u16::MAX), Status::INVALID_QID),
    ] {
        assert_status(&mut host, entry, expected);
    }
    assert_ok(host.admin.run(Admin::create_cq(3, 7, memory.iova(0))));
    assert_ok(host.admin.run(Admin::create_sq(1, 7, memory.iova(4096), 3)));
    assert_ok(host.admin.run(Admin::create_sq(2, 7, memory.iova(8192), 3)));
    assert_status(&mut host, Admin::delete_cq(3), Status::INVALID_QUEUE_DELETION);
    assert_ok(host.admin.run(Admin::delete_sq(1)));
    assert_status(&mut host, Admin::delete_cq(3), Status::INVALID_QUEUE_DELETION);
    assert_ok(host.admin.run(Admin::delete_sq(2)));
    assert_ok(host.admin.run(Admin::delete_cq(3)));
    assert_status(&mut host, Admin::delete_cq(3), Status::INVALID_QID);
    assert_status(&mut host, Admin::delete_sq(2), Status::INVALID_QID);
    host.pair(3, 8);
}

#[test]
fn number_of_queues_is_granted_before_queues_exist() {
    let mut host = host("queues=8");
    let number = FeatureId::NUMBER_OF_QUEUES;
    let set = |low: u32, high: u32| Admin::set_feature(number, low | high << 16);
    assert_eq!(host.admin.run(set(63, 63)).result, 7 | 7 << 16, "no more than there are");
    assert_eq!(host.admin.run(set(1, 2)).result, 1 | 2 << 16);
    assert_eq!(host.admin.run(Admin::get_feature(number, 0)).result, 1 | 2 << 16);
    assert_status(&mut host, set(0xffff, 0), Status::INVALID_FIELD);
    let memory = host.buffer(4096);
    assert_status(&mut host, Admin::create_cq(4, 7, memory.iova(0)), Status::INVALID_QID);
    assert_ok(host.admin.run(Admin::create_cq(3, 7, memory.iova(0))));
    let create = Admin::create_sq(3, 7, memory.iova(0), 3);
    assert_status(&mut host, create, Status::INVALID_QID);
    assert_status(&mut host, set(7, 7), Status::COMMAND_SEQUENCE);
}

#[test]
fn features_are_kept_and_unknown_ones_refused() {
    let mut host = host("");
    let cache = FeatureId::VOLATILE_WRITE_CACHE;
    assert_eq!(host.admin.run(Admin::get_feature(cache, 0)).result, 1);
    assert_ok(host.admin.run(Admin::set_feature(cache, 0)));
    assert_eq!(host.admin.run(Admin::get_feature(cache, 0)).result, 0);
    assert_status(&mut host, Admin::get_feature(FeatureId(0xd0), 0), Status::INVALID_FIELD);
    assert_status(&mut host, Admin::set_feature(FeatureId(0), 0), Status::INVALID_FIELD);
    let mut saved = Admin::set_feature(cache, 1);
    saved.cdw10 |= 1 << 31;
    assert_status(&mut host, saved, Status::FEATURE_NOT_SAVEABLE);
    let mut default = Admin::get_feature(cache, 0);
    default.cdw10 |= 1 << 8;
    assert_status(&mut host, default, Status::INVALID_FIELD);
}

fn log(host: &mut Host, entry: SubmissionEntry, bytes: usize) -> Result<Vec<u8>, Status> {
    let buffer = host.buffer(bytes);
    let entry = SubmissionEntry { prp1: buffer.iova(0), ..entry };
    let completion = host.admin.run(entry);
    let mut content = vec![0; bytes];
    buffer.read(0, &mut content);
    if completion.status().is_success() { Ok(content) } else { Err(code(completion)) }
}

fn smart(host: &mut Host) -> SmartLog {
    let bytes = log(host, Admin::get_log(LogId::SMART, NSID_ALL, 512), 512).unwrap();
    SmartLog::read_from_bytes(&bytes).unwrap()
}

#[test]
fn smart_counts_what_was_done() {
    let mut host = host("size=64M");
    let mut pair = host.pair(1, 8);
    let buffer = host.buffer(128 << 10);
    let list = host.buffer(4096);
    for page in 1..32 {
        list.words()[page - 1]
            .store(buffer.iova(page * 4096), std::sync::atomic::Ordering::Relaxed);
    }
    for round in 0..5 {
        assert_ok(pair.run(io(NvmOpcode::WRITE, round, 256, buffer.iova(0), list.iova(0))));
    }
    for _ in 0..3 {
        assert_ok(pair.run(io(NvmOpcode::READ, 0, 1, buffer.iova(0), 0)));
    }
    let failed = pair.run(io(NvmOpcode::READ, u64::MAX, 1, buffer.iova(0), 0));
    assert_eq!(code(failed), Status::LBA_OUT_OF_RANGE);
    let smart = smart(&mut host);
    assert_eq!(smart.host_writes, [5, 0]);
    assert_eq!(smart.host_reads, [3, 0]);
    assert_eq!(smart.data_units_written, [2, 0], "1,280 units of 512 bytes, in thousands, up");
    assert_eq!(smart.data_units_read, [1, 0]);
    assert_eq!(smart.error_log_entries, [1, 0]);
    assert_eq!(smart.media_errors, [0, 0]);
    assert_eq!(smart.temperature_celsius(), Some(27));
    assert_eq!((smart.critical_warning, smart.available_spare_pct), (0, 100));
    let counters = host.controller.counters();
    assert_eq!((counters.writes, counters.reads, counters.failed), (5, 3, 1));
    assert_eq!((counters.written_bytes, counters.read_bytes), (5 * 131_072, 3 * 512));
}

#[test]
fn the_error_log_tells_which_command_failed() {
    let mut host = host("");
    let mut pair = host.pair(1, 8);
    let mut entry = SubmissionEntry::io(NvmOpcode::READ, 7, 0x1234, 0);
    entry.cid = 0x55aa;
    assert_eq!(code(pair.run(entry)), Status::INVALID_NAMESPACE);
    let bytes = log(&mut host, Admin::get_log(LogId::ERROR, NSID_ALL, 4096), 4096).unwrap();
    assert_eq!(bytes[..8], 1u64.to_le_bytes());
    assert_eq!(bytes[8..12], [1, 0, 0xaa, 0x55]);
    let status = u16::from_le_bytes([bytes[12], bytes[13]]);
    assert_eq!(Status(Status::from_entry(status).0 & 0x7ff), Status::INVALID_NAMESPACE);
    assert_eq!(bytes[16..24], 0x1234u64.to_le_bytes());
    assert_eq!(bytes[24..28], 7u32.to_le_bytes());
    assert!(bytes[64..].iter().all(|byte| *byte == 0));
}

#[test]
fn logs_have_lengths_and_offsets() {
    let mut host = host("mdts=8k");
    let firmware = Admin::get_log(LogId::FIRMWARE, NSID_ALL, 512);
    let bytes = log(&mut host, firmware, 512).unwrap();
    assert_eq!((bytes[0], &bytes[8..16]), (1, &b"1.0     "[..]));
    for offset in [4u32, 8, 12] {
        let from = SubmissionEntry { cdw12: offset, ..Admin::get_log(LogId::FIRMWARE, 0, 64) };
        let part = log(&mut host, from, 64).unwrap();
        assert_eq!(part, bytes[offset as usize..][..64], "from {offset}");
    }
    let long = log(&mut host, Admin::get_log(LogId::FIRMWARE, 0, 4096), 4096).unwrap();
    assert!(long[..512] == bytes && long[512..].iter().all(|byte| *byte == 0));
    for (entry, expected) in [
        (Admin::get_log(LogId(0x05), NSID_ALL, 512), Status::INVALID_LOG),
        (Admin::get_log(LogId::SMART, 1, 512), Status::INVALID_FIELD),
        (SubmissionEntry { cdw12: 516, ..firmware }, Status::INVALID_FIELD),
        (SubmissionEntry { cdw13: 1, ..firmware }, Status::INVALID_FIELD),
        (SubmissionEntry { cdw12: 2, ..firmware }, Status::INVALID_FIELD),
        (Admin::get_log(LogId::ERROR, NSID_ALL, 8196), Status::INVALID_FIELD),
        (Admin::get_log(LogId::ERROR, NSID_ALL, u32::MAX), Status::INVALID_FIELD),
    ] {
        assert_eq!(log(&mut host, entry, 12_288).unwrap_err(), expected, "{entry:?}");
    }
}

#[test]
fn async_event_requests_are_held_limited_and_aborted() {
    let mut host = host("");
    let request = |cid| SubmissionEntry {
        opcode: AdminOpcode::ASYNC_EVENT.0,
        cid,
        ..SubmissionEntry::default()
    };
    for cid in 10..14 {
        host.admin.push(request(cid));
    }
    host.admin.ring();
    assert!(host.admin.take().is_none(), "they are held");
    assert_status(&mut host, request(14), Status::ASYNC_EVENT_LIMIT);
    let abort = |cid: u32| SubmissionEntry {
        opcode: AdminOpcode::ABORT.0,
        cid: 99,
        cdw10: cid << 16,
        ..SubmissionEntry::default()
    };
    host.admin.push(abort(11));
    host.admin.ring();
    let aborted = host.admin.wait();
    assert_eq!((aborted.cid, code(aborted)), (11, Status::ABORTED));
    let abort_done = host.admin.wait();
    assert_eq!((abort_done.cid, abort_done.result), (99, 0), "bit 0 clear: it was aborted");
    assert_eq!(host.admin.run(abort(11)).result, 1, "it is not there any more");
    // A doorbell of a queue that does not exist is an error event.
    host.controller.doorbell(0x1000 + 8 * 20).unwrap().ring(1);
    let event = host.admin.wait();
    assert_eq!((event.cid, event.result), (10, 0x0001_0000));
    // Its type is masked until the error log is read.
    host.controller.doorbell(0x1000 + 8 * 20).unwrap().ring(1);
    assert!(host.admin.take().is_none());
    log(&mut host, Admin::get_log(LogId::ERROR, NSID_ALL, 64), 64).unwrap();
    host.controller.doorbell(0x1000 + 8 * 20 + 4).unwrap().ring(1);
    assert_eq!(host.admin.wait().result, 0x0001_0000);
    assert_eq!(host.controller.counters().invalid_doorbells, 3);
}

#[test]
fn a_temperature_event_comes_when_it_was_asked_for() {
    let mut host = host("");
    host.admin.push(SubmissionEntry {
        opcode: AdminOpcode::ASYNC_EVENT.0,
        cid: 77,
        ..SubmissionEntry::default()
    });
    host.admin.ring();
    let threshold = |kelvin| Admin::set_feature(FeatureId::TEMPERATURE_THRESHOLD, kelvin);
    assert_ok(host.admin.run(threshold(290)));
    assert_eq!(smart(&mut host).critical_warning, 2);
    assert!(host.admin.take().is_none(), "nobody asked");
    host.admin.push(Admin::set_feature(FeatureId::ASYNC_EVENTS, 2));
    host.admin.ring();
    let both = [host.admin.wait(), host.admin.wait()];
    let event = both.iter().find(|completion| completion.cid == 77).unwrap();
    assert_eq!(event.result, 0x0002_0101);
    assert_ok(host.admin.run(threshold(400)));
    assert_eq!(smart(&mut host).critical_warning, 0);
}

#[test]
fn format_takes_what_there_is_and_nothing_else() {
    for (options, right) in [
        ("", FormatSettings::new()),
        ("ms=8,pi=2", FormatSettings::new().with_protection(2)),
        ("ms=16,mset=1", FormatSettings::new().with_metadata_interleaved(true)),
    ] {
        let mut host = host(options);
        let erase = right.with_secure_erase(1);
        assert_ok(host.admin.run(Admin::format(1, right)));
        assert_ok(host.admin.run(Admin::format(NSID_ALL, erase)));
        for (wrong, status) in [
            (right.with_format(1), Status::INVALID_FORMAT),
            (right.with_format(16), Status::INVALID_FORMAT),
            (right.with_protection(right.protection() ^ 1), Status::INVALID_FORMAT),
            (right.with_secure_erase(2), Status::INVALID_FIELD),
        ] {
            assert_status(&mut host, Admin::format(1, wrong), status);
        }
        assert_status(&mut host, Admin::format(2, right), Status::INVALID_NAMESPACE);
    }
}
