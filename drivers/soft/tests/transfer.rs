//! Data moves as it should, in both ways to run.

mod common;

use common::*;
use nvpoll_spec::{Cns, NvmOpcode};

fn write_and_read_back(options: nvpoll_soft::SoftOptions) {
    let mut host = Host::new(options);
    assert!(host.identify(Cns::CONTROLLER, 0).is_ok());
    let mut pair = host.pair(1, 16);
    let buffer = host.buffer(4096);
    for round in 0..100u64 {
        let data = pattern(round, 4096);
        buffer.write(0, &data);
        let lba = round * 8;
        assert_ok(pair.run(io(NvmOpcode::WRITE, lba, 8, buffer.iova(0), 0)));
        buffer.clear();
        assert_ok(pair.run(io(NvmOpcode::READ, lba, 8, buffer.iova(0), 0)));
        let mut back = vec![0; 4096];
        buffer.read(0, &mut back);
        assert_eq!(back, data, "round {round}");
    }
    assert_eq!(host.controller.dma_faults(), []);
}

#[test]
fn stepped_device_keeps_what_is_written() {
    write_and_read_back(stepped("size=16M"));
}

#[test]
fn threaded_device_keeps_what_is_written() {
    write_and_read_back("size=16M".parse().unwrap());
}
