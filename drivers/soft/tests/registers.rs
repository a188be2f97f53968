//! The register file and the state machine behind it.

mod common;

use common::*;
use nvpoll_mem::{Doorbell, Registers};
use nvpoll_soft::{SoftController, SoftOptions};
use nvpoll_spec::{
    Admin, AdminQueueAttributes, Capabilities, ControllerConfiguration, ControllerStatus,
    FeatureId, NvmOpcode, ShutdownStatus, SubmissionEntry, Version, reg,
};
use std::sync::Arc;

fn start(text: &str) -> Arc<SoftController> {
    SoftController::start(stepped(text)).unwrap()
}

/// Both ways to run, for what must not depend on it.
fn both(text: &str, test: impl Fn(SoftOptions)) {
    test(stepped(text));
    test(text.parse().unwrap());
}

#[test]
fn capabilities_say_what_the_options_say() {
    let pages = |text: &str| {
        let controller = start(text);
        Capabilities::from_bits(controller.read64(reg::CAP).unwrap()).page_bytes()
    };
    assert_eq!(pages("mpsmin=8k,mpsmax=32k"), (8192, 32_768));
    assert_eq!(pages("mpsmax=4k"), (4096, 4096));
    let controller = start("mqes=300,stride=3,timeout=2s,queues=5");
    let cap = Capabilities::from_bits(controller.read64(reg::CAP).unwrap());
    assert_eq!(cap.queue_entries_max(), 300);
    assert_eq!(cap.doorbell_stride_bytes(), 32);
    assert_eq!(cap.timeout_ms(), 2_000);
    assert_eq!(cap.page_bytes(), (4096, 65_536));
    assert_eq!(cap.command_sets(), 1);
    assert!(cap.contiguous_queues());
    let version = Version::from_bits(controller.read32(reg::VS).unwrap());
    assert_eq!(version.to_string(), "1.4");
    assert_eq!(controller.read32(reg::CSTS).unwrap(), 0);
    assert_eq!(controller.read32(0x3c).unwrap(), 0, "reserved");
    controller.write32(reg::CAP, 0).unwrap();
    controller.write32(reg::CSTS, 0xffff_ffff).unwrap();
    assert_eq!(controller.read64(reg::CAP).unwrap(), cap.into_bits(), "read-only");
    assert_eq!(controller.read32(reg::CSTS).unwrap(), 0, "read-only");
}

#[test]
fn accesses_outside_and_askew_are_errors() {
    let controller = start("queues=1");
    let bar = 0x2000;
    assert!(controller.read32(bar - 4).is_ok());
    for offset in [bar, bar + 4, 2, 0x1001, usize::MAX - 3] {
        assert_eq!(controller.read32(offset).unwrap_err().bytes, bar, "{offset:#x}");
        assert!(controller.write32(offset, 0).is_err(), "{offset:#x}");
        assert!(controller.doorbell(offset).is_err(), "{offset:#x}");
    }
    assert!(controller.doorbell(0x100c).is_ok(), "queue 1's head");
    assert!(controller.doorbell(0x1010).is_err(), "queue 2 is beyond what there is");
    assert!(controller.doorbell(0x14).is_err(), "no doorbell stands below 1000h");
    let wide = start("queues=2,stride=15");
    assert!(wide.doorbell(reg::cq_head_doorbell(2, 131_072)).is_ok());
    assert!(wide.doorbell(0x1004).is_err(), "between two doorbells");
    wide.write32(0x1004, 7).unwrap();
}

#[test]
fn queue_registers_hold_until_enabled_and_interrupts_are_masked() {
    let controller = start("");
    controller.write64(reg::ASQ, 0x1234_5678_9abc_def0).unwrap();
    controller.write64(reg::ACQ, u64::MAX).unwrap();
    controller.write32(reg::AQA, u32::MAX).unwrap();
    assert_eq!(controller.read64(reg::ASQ).unwrap(), 0x1234_5678_9abc_d000);
    assert_eq!(controller.read64(reg::ACQ).unwrap(), !0xfff);
    assert_eq!(controller.read32(reg::AQA).unwrap(), 0x0fff_0fff);
    controller.write32(reg::INTMS, 0b1110).unwrap();
    controller.write32(reg::INTMC, 0b0100).unwrap();
    assert_eq!(controller.read32(reg::INTMS).unwrap(), 0b1010);
    assert_eq!(controller.read32(reg::INTMC).unwrap(), 0b1010);
    let host = Host::new(stepped(""));
    let before = host.controller.read64(reg::ASQ).unwrap();
    host.controller.write64(reg::ASQ, 0).unwrap();
    host.controller.write32(reg::AQA, 0).unwrap();
    assert_eq!(host.controller.read64(reg::ASQ).unwrap(), before);
    assert_ne!(host.controller.read32(reg::AQA).unwrap(), 0);
}

/// A configuration that cannot work is a fatal status, which a reset takes away.
#[test]
fn bad_configurations_are_fatal() {
    let good = enabled();
    let with = |aqa: (u16, u16), asq: u64, cc: ControllerConfiguration| {
        let aqa = AdminQueueAttributes::new().with_sq_entries_z(aqa.0).with_cq_entries_z(aqa.1);
        (aqa, asq, cc)
    };
    let cases = [
        ("ASQS 0", with((0, 1), 0x1000, good)),
        ("ACQS 0", with((1, 0), 0x1000, good)),
        ("MPS past MPSMAX", with((1, 1), 0x10_0000, good.with_page_size(5))),
        ("CSS", with((1, 1), 0x1000, good.with_command_set(6))),
        ("AMS", with((1, 1), 0x1000, good.with_arbitration(1))),
        ("IOSQES", with((1, 1), 0x1000, good.with_sq_entry_log2(5))),
        ("IOCQES", with((1, 1), 0x1000, good.with_cq_entry_log2(5))),
        ("ASQ not on a 64 KiB page", with((1, 1), 0x1000, good.with_page_size(4))),
    ];
    both("size=1M", |options| {
        let controller = SoftController::start(options).unwrap();
        for (name, (aqa, asq, cc)) in &cases {
            controller.write32(reg::AQA, aqa.into_bits()).unwrap();
            controller.write64(reg::ASQ, *asq).unwrap();
            controller.write64(reg::ACQ, 0x10_0000).unwrap();
            controller.write32(reg::CC, cc.into_bits()).unwrap();
            let status = wait_status(&controller, |csts| csts.fatal());
            assert!(!status.ready(), "{name}");
            controller.write32(reg::CC, 0).unwrap();
            wait_status(&controller, |csts| !csts.fatal());
        }
        drop(Host::over(controller, good, 2));
    });
}

#[test]
fn a_page_that_the_options_leave_out_is_fatal() {
    both("size=1M,mpsmin=8k,mpsmax=16k", |options| {
        let controller = SoftController::start(options).unwrap();
        let aqa = AdminQueueAttributes::new().with_sq_entries_z(1).with_cq_entries_z(1);
        controller.write32(reg::AQA, aqa.into_bits()).unwrap();
        controller.write64(reg::ASQ, 0x10_0000).unwrap();
        controller.write64(reg::ACQ, 0x20_0000).unwrap();
        for (page_size, is_good) in [(0, false), (1, true), (2, true), (3, false)] {
            let cc = enabled().with_page_size(page_size);
            controller.write32(reg::CC, cc.into_bits()).unwrap();
            let status = wait_status(&controller, |csts| csts.fatal() || csts.ready());
            assert_eq!((status.ready(), status.fatal()), (is_good, !is_good), "MPS {page_size}");
            controller.write32(reg::CC, 0).unwrap();
            wait_status(&controller, |csts| !csts.fatal() && !csts.ready());
        }
    });
}

#[test]
fn a_stepped_device_changes_only_after_it_was_looked_at() {
    let host = Host::new(stepped(""));
    let csts = || status(&host.controller);
    host.controller.write32(reg::CC, 0).unwrap();
    assert!(csts().ready(), "the first look sees the old state");
    assert!(!csts().ready());
    host.controller.write32(reg::CC, enabled().into_bits()).unwrap();
    assert!(!csts().ready());
    assert!(csts().ready());
    host.controller.write32(reg::CC, enabled().with_shutdown(1).into_bits()).unwrap();
    let seen: Vec<_> = (0..4).map(|_| csts().shutdown()).collect();
    use ShutdownStatus::*;
    assert_eq!(seen, [Normal, Occurring, Complete, Complete]);
}

#[test]
fn shutdown_completes_and_a_reset_brings_it_back() {
    for shutdown in [1, 2] {
        both("size=1M", |options| {
            let mut host = Host::new(options);
            let mut pair = host.pair(1, 8);
            let cc = enabled().with_shutdown(shutdown);
            host.controller.write32(reg::CC, cc.into_bits()).unwrap();
            let done = |csts: ControllerStatus| csts.shutdown() == ShutdownStatus::Complete;
            wait_status(&host.controller, done);
            // Nothing is carried out any more.
            pair.push(SubmissionEntry::io(NvmOpcode::FLUSH, 1, 0, 0));
            pair.ring();
            std::thread::sleep(std::time::Duration::from_millis(5));
            assert!(pair.take().is_none());
            host.reset();
            assert_eq!(status(&host.controller).shutdown(), ShutdownStatus::Normal);
            let again = Host::over(Arc::clone(&host.controller), enabled(), 16);
            assert!(status(&again.controller).ready());
        });
    }
}

/// Queues and features vanish with a reset.
#[test]
fn reset_forgets_queues_and_features() {
    both("size=1M,queues=4", |options| {
        let mut host = Host::new(options);
        let set = Admin::set_feature(FeatureId::NUMBER_OF_QUEUES, 0);
        assert_eq!(host.admin.run(set).result, 0, "one queue is granted");
        let mut pair = host.pair(1, 8);
        assert_ok(pair.run(SubmissionEntry::io(NvmOpcode::FLUSH, 1, 0, 0)));
        host.reset();
        let mut again = Host::over(Arc::clone(&host.controller), enabled(), 8);
        let counts = again.admin.run(Admin::get_feature(FeatureId::NUMBER_OF_QUEUES, 0)).result;
        assert_eq!(counts, 3 << 16 | 3, "the default is back");
        again.pair(1, 8);
        assert_eq!(again.controller.counters().resets, 1);
    });
}

/// CC.EN that falls and rises before the device looks is a reset all the same.
#[test]
fn a_reset_that_nobody_waited_for_is_one() {
    both("size=1M", |options| {
        let mut host = Host::new(options);
        let mut pair = host.pair(1, 8);
        host.controller.write32(reg::CC, 0).unwrap();
        host.controller.write32(reg::CC, enabled().into_bits()).unwrap();
        pair.push(SubmissionEntry::io(NvmOpcode::FLUSH, 1, 0, 0));
        pair.ring();
        let controller = &host.controller;
        wait_status(controller, |csts| csts.ready() && controller.counters().resets == 1);
        pair.ring();
        wait_status(controller, |_| controller.counters().invalid_doorbells > 0);
        assert!(pair.take().is_none(), "the queue was there before the reset");
    });
}

#[test]
fn doorbells_before_enabling_do_nothing() {
    both("size=1M", |options| {
        let controller = SoftController::start(options).unwrap();
        let doorbell = controller.doorbell(reg::DOORBELLS).unwrap();
        doorbell.ring(3);
        let mut host = Host::over(Arc::clone(&controller), enabled(), 8);
        assert_ok(host.admin.run(Admin::get_feature(FeatureId::ARBITRATION, 0)));
        assert_eq!(controller.counters().invalid_doorbells, 0);
    });
}
