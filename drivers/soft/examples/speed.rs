//! What the soft controller itself costs: nanoseconds per 4 KiB I/O, without a driver.
//!
//! `cargo run --release -p nvpoll-soft --example speed -- [OPTIONS [WRITES [IOS]]]`, with OPTIONS
//! as after `soft:`. For instructions run it below
//! `valgrind --tool=callgrind --toggle-collect='*::step'` with the option `stepped`.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Host, Pair, io};
use nvpoll_mem::DmaBuf;
use nvpoll_spec::NvmOpcode;
use std::time::Instant;

const DEPTH: usize = 32;
const BYTES: usize = 4096;

fn drive(pair: &mut Pair, opcode: NvmOpcode, buffer: &DmaBuf, blocks: u64, ios: usize) {
    let entry = |tag: usize, n: usize| {
        let lba = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % (blocks / 8) * 8;
        let mut entry = io(opcode, lba, 8, buffer.iova(tag * BYTES), 0);
        entry.cid = tag as u16;
        entry
    };
    for tag in 0..DEPTH {
        pair.push(entry(tag, tag));
    }
    pair.ring();
    let mut sent = DEPTH;
    let mut done = 0;
    while done < ios {
        let mut reaped = 0;
        while let Some(completion) = pair.take() {
            assert!(completion.status().is_success(), "{completion:?}");
            reaped += 1;
            if sent < ios {
                pair.push(entry(completion.cid.into(), sent));
                sent += 1;
            }
        }
        if reaped == 0 {
            std::hint::spin_loop();
            continue;
        }
        done += reaped;
        pair.ring_head();
        pair.ring();
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let options = args.next().unwrap_or_else(|| "size=64M,stepped".to_owned());
    let writes = args.next().is_some_and(|flag| flag == "1");
    let ios = args.next().and_then(|count| count.parse().ok()).unwrap_or(2_000_000);
    let options: nvpoll_soft::SoftOptions = match options.parse() {
        Ok(options) => options,
        Err(error) => return eprintln!("{error}"),
    };
    let text = options.to_string();
    let blocks = options.size_bytes / 512;
    let mut host = Host::new(options);
    let mut pair = host.pair(1, 64);
    let buffer = host.buffer(DEPTH * BYTES);
    let opcode = if writes { NvmOpcode::WRITE } else { NvmOpcode::READ };
    if !writes {
        // So that reads find blocks rather than holes.
        drive(&mut pair, NvmOpcode::WRITE, &buffer, blocks, (ios / 4).max(DEPTH));
    }
    let start = Instant::now();
    drive(&mut pair, opcode, &buffer, blocks, ios);
    let elapsed = start.elapsed();
    let ns = elapsed.as_nanos() as f64 / ios as f64;
    println!("{text} {opcode}: {ns:.1} ns per I/O, {:.0} kIOPS at QD {DEPTH}", 1e6 / ns);
}
