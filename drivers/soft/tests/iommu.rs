//! The soft IOMMU faults on every access outside of what is mapped, in every part of the device.

mod common;

use common::*;
use nvpoll_mem::Registers;
use nvpoll_soft::{DmaFault, SoftOptions};
use nvpoll_spec::{Admin, Cns, NvmOpcode, Status, SubmissionEntry, reg};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn both(test: impl Fn(SoftOptions)) {
    test(stepped("size=8M"));
    test("size=8M".parse().unwrap());
}

fn data_fault(iova: u64, bytes: u64, write: bool) -> DmaFault {
    DmaFault { iova, bytes, write, what: "data" }
}

#[test]
fn data_outside_of_the_mapping_faults_and_moves_nothing() {
    both(|options| {
        let mut host = Host::new(options);
        let mut pair = host.pair(1, 8);
        let buffer = host.buffer(8192);
        buffer.write(0, &[0x33; 8192]);
        let end = buffer.iova(8192);
        let (read, write) = (NvmOpcode::READ, NvmOpcode::WRITE);
        let page = buffer.iova(0);
        let mut expected = Vec::new();
        for (opcode, prp1, prp2, fault) in [
            (read, end, 0, data_fault(end, 4096, true)),
            (write, end, 0, data_fault(end, 4096, false)),
            (read, 0, 0, data_fault(0, 4096, true)),
            (read, page & 0xffff_ffff, 0, data_fault(page & 0xffff_ffff, 4096, true)),
            (read, u64::MAX - 0xfff, 0, data_fault(u64::MAX - 0xfff, 4096, true)),
            // The second page is missing: the first one is left alone as well.
            (read, page + 512, end, data_fault(end, 512, true)),
            (read, page + 512, 0, data_fault(0, 512, true)),
        ] {
            let completion = pair.run(io(opcode, 0, 8, prp1, prp2));
            assert_eq!(code(completion), Status::DATA_TRANSFER, "{fault}");
            expected.push(fault);
        }
        assert_eq!(host.controller.dma_faults(), expected);
        assert_eq!(host.controller.counters().dma_faults, 7);
        let untouched = |word: &AtomicU64| word.load(Relaxed) == 0x3333_3333_3333_3333;
        assert!(buffer.words().iter().all(untouched));
        assert_ok(pair.run(io(read, 0, 8, page, 0)));
    });
}

#[test]
fn prp_lists_outside_of_the_mapping_fault() {
    let mut host = Host::new(stepped("size=8M"));
    let mut pair = host.pair(1, 8);
    let buffer = host.buffer(65_536);
    let list = host.buffer(4096);
    let mut faults = Vec::new();
    let mut check = |blocks, prp2, fault: DmaFault| {
        let completion = pair.run(io(NvmOpcode::READ, 0, blocks, buffer.iova(0), prp2));
        assert_eq!(code(completion), Status::DATA_TRANSFER, "{fault}");
        faults.push(fault);
    };
    let of_list = |iova, bytes| DmaFault { iova, bytes, write: false, what: "PRP list" };
    // No list at all, one that the guard page cuts, and an entry that leads nowhere.
    check(64, 0x8000, of_list(0x8000, 56));
    check(64, list.iova(4096), of_list(list.iova(4096), 56));
    list.words()[0].store(buffer.iova(4096), Relaxed);
    list.words()[1].store(0x7000, Relaxed);
    check(24, list.iova(0), data_fault(0x7000, 4096, true));
    // A chain that leads nowhere.
    list.words()[510].store(buffer.iova(4096), Relaxed);
    list.words()[511].store(0x9000, Relaxed);
    check(64, list.iova(510 * 8), of_list(0x9000, 48));
    assert_eq!(host.controller.dma_faults(), faults);
}

#[test]
fn memory_that_was_unmapped_faults_from_then_on() {
    both(|options| {
        let mut host = Host::new(options);
        let mut pair = host.pair(1, 8);
        for round in 0..50 {
            let buffer = host.buffer(4096);
            let iova = buffer.iova(0);
            assert_ok(pair.run(io(NvmOpcode::READ, 0, 8, iova, 0)));
            drop(buffer);
            let completion = pair.run(io(NvmOpcode::READ, 0, 8, iova, 0));
            assert_eq!(code(completion), Status::DATA_TRANSFER, "round {round}");
            assert_eq!(host.controller.dma_faults()[round], data_fault(iova, 4096, true));
        }
    });
}

#[test]
fn admin_data_faults_too() {
    let mut host = Host::new(stepped(""));
    let mut entry = Admin::identify(Cns::CONTROLLER, 0);
    entry.prp1 = 0x5000;
    assert_eq!(code(host.admin.run(entry)), Status::DATA_TRANSFER);
    assert_eq!(host.controller.dma_faults(), [data_fault(0x5000, 4096, true)]);
}

fn queue_fault(iova: u64, what: &'static str) -> DmaFault {
    let write = what == "completion queue";
    DmaFault { iova, bytes: if write { 16 } else { 64 }, write, what }
}

/// Without a queue's memory the device cannot tell anything but by CSTS.CFS.
#[test]
fn a_queue_outside_of_the_mapping_is_fatal() {
    both(|options| {
        for what in ["submission queue", "completion queue"] {
            let mut host = Host::new(options.clone());
            let good = host.buffer(4096);
            let bad = 0xdead_0000;
            let (sq, cq) =
                if what == "completion queue" { (good.iova(0), bad) } else { (bad, good.iova(0)) };
            assert_ok(host.admin.run(Admin::create_cq(1, 7, cq)));
            assert_ok(host.admin.run(Admin::create_sq(1, 7, sq, 1)));
            good.words()[0].store(u64::from(NvmOpcode::FLUSH.0) | 1 << 32, Relaxed);
            host.controller.write32(reg::sq_tail_doorbell(1, host.stride), 1).unwrap();
            let csts = wait_status(&host.controller, |csts| csts.fatal());
            assert!(csts.ready(), "RDY stays until EN is cleared");
            assert_eq!(host.controller.dma_faults(), [queue_fault(bad, what)]);
            // Nothing works until the reset, and everything does afterwards.
            host.admin.push(Admin::delete_sq(1));
            host.admin.ring();
            std::thread::sleep(std::time::Duration::from_millis(2));
            assert!(host.admin.take().is_none());
            host.reset();
            let mut again = Host::over(Arc::clone(&host.controller), enabled(), 8);
            assert!(again.identify(Cns::CONTROLLER, 0).is_ok());
        }
    });
}

/// A queue that is longer than its mapping works until its end.
#[test]
fn a_queue_that_is_mapped_in_part_faults_at_the_mappings_end() {
    let mut host = Host::new(stepped(""));
    let cq = host.buffer(4096);
    let sq = host.buffer(4096);
    let create = Admin::create_cq(1, 127, cq.iova(0));
    assert_ok(host.admin.run(create));
    assert_ok(host.admin.run(Admin::create_sq(1, 127, sq.iova(0), 1)));
    let flush = SubmissionEntry::io(NvmOpcode::FLUSH, 1, 0, 0).to_words();
    for (n, word) in sq.words().iter().enumerate() {
        word.store(flush[n % 8], Relaxed);
    }
    host.controller.write32(reg::sq_tail_doorbell(1, 4), 64).unwrap();
    assert!(!status(&host.controller).fatal());
    host.controller.write32(reg::sq_tail_doorbell(1, 4), 65).unwrap();
    assert!(status(&host.controller).fatal());
    let end = sq.iova(4096);
    assert_eq!(host.controller.dma_faults(), [queue_fault(end, "submission queue")]);
}

#[test]
fn the_admin_queue_may_be_what_is_missing() {
    both(|options| {
        let controller = nvpoll_soft::SoftController::start(options).unwrap();
        controller.write32(reg::AQA, 3 | 3 << 16).unwrap();
        controller.write64(reg::ASQ, 0x1000).unwrap();
        controller.write64(reg::ACQ, 0x2000).unwrap();
        controller.write32(reg::CC, enabled().into_bits()).unwrap();
        wait_status(&controller, |csts| csts.ready());
        controller.write32(reg::DOORBELLS, 1).unwrap();
        wait_status(&controller, |csts| csts.fatal());
        assert_eq!(controller.dma_faults(), [queue_fault(0x1000, "submission queue")]);
    });
}

#[test]
fn faults_are_kept_up_to_a_limit_and_counted_beyond() {
    let mut host = Host::new(stepped(""));
    let mut pair = host.pair(1, 8);
    for round in 0..300 {
        pair.run(io(NvmOpcode::READ, 0, 8, 0x1000 * (round + 1), 0));
    }
    assert_eq!(host.controller.dma_faults().len(), 256);
    assert_eq!(host.controller.dma_faults()[255].iova, 0x10_0000);
    assert_eq!(host.controller.counters().dma_faults, 300);
    let text = host.controller.dma_faults()[0].to_string();
    assert_eq!(text, "the device wanted to write 4096 bytes (data) at 0x1000, which is not mapped");
}

/// The device lets go of memory that it was shown: after a reset at once.
#[test]
fn a_reset_lets_go_of_memory() {
    both(|options| {
        let mut host = Host::new(options);
        let dma = Arc::clone(&host.dma);
        let pages = Arc::new(nvpoll_mem::Pages::new(4096).unwrap());
        let iova = dma.map(&pages).unwrap();
        assert!(host.identify(Cns::CONTROLLER, 0).is_ok());
        assert!(dma.unmap(iova, &pages));
        host.reset();
        assert_eq!(Arc::strong_count(&pages), 1);
    });
}
