//! The commands, one after the other, on Linux.

use nvpoll_nvme::{Commands, Controller, NvmeError, Options};
use nvpoll_pci::TransportOptions;
use nvpoll_pci::vfio::VfioFunction;
use nvpoll_spec::{FeatureId, ascii_field};
use std::error::Error;

/// First block that is written, and how many.
const LBA: u64 = 64;
const BLOCKS: usize = 16;

/// Takes the drive that the arguments name.
pub fn check() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, serial] = &arguments[..] else {
        return Err("usage: commands ADDRESS SERIAL (the drive's data is lost)".into());
    };
    let function = VfioFunction::open(address.parse()?, TransportOptions::default())?;
    let controller = Controller::open(function, Options::default())?;
    if ascii_field(&controller.identity().serial) != Ok(serial.as_str()) {
        return Err(format!("the drive's serial number is not {serial}").into());
    }
    let namespace = controller.namespace(1)?;
    if let Some(zones) = &namespace.zones {
        return crate::zones::check(&controller, &namespace, zones);
    }
    io_commands(&controller)?;
    admin_commands(&controller)?;
    Ok(())
}

/// Says what became of a command: done, or not offered.
fn told(name: &str, result: Result<(), NvmeError>) -> Result<bool, NvmeError> {
    match result {
        Ok(()) => println!("{name}: checked"),
        Err(NvmeError::Unsupported { reason, .. }) => {
            println!("{name}: {reason}");
            return Ok(false);
        }
        Err(error) => return Err(error),
    }
    Ok(true)
}

fn io_commands(
    controller: &std::sync::Arc<Controller<VfioFunction>>,
) -> Result<(), Box<dyn Error>> {
    let namespace = controller.namespace(1)?;
    let block = namespace.block_bytes as usize;
    let mut commands = Commands::new(controller, &namespace, true)?;
    let mut expected: Vec<u8> = (0..BLOCKS * block).map(|at| (at / 7 % 251) as u8 + 1).collect();
    let mut seen = vec![0; expected.len()];
    for fua in [false, true] {
        commands.write(LBA, &expected, fua)?;
        commands.read(LBA, &mut seen)?;
        assert!(seen == expected, "written with FUA {fua}");
    }
    println!("Write with FUA: checked");
    told("Compare", commands.compare(LBA, &expected).map(|same| assert!(same)))?;
    expected[3] ^= 1;
    told("Compare of other data", commands.compare(LBA, &expected).map(|same| assert!(!same)))?;
    expected[3] ^= 1;
    told("Verify", commands.verify(LBA, BLOCKS as u32))?;
    if told("Copy", commands.copy(LBA + 100, &[(LBA + 3, 2), (LBA, 1)]))? {
        let mut copied = vec![0; 3 * block];
        commands.read(LBA + 100, &mut copied)?;
        assert!(copied == [&expected[3 * block..5 * block], &expected[..block]].concat());
    }
    if told("Write Zeroes", commands.write_zeroes(LBA + 1, 2, false))? {
        expected[block..3 * block].fill(0);
        commands.read(LBA, &mut seen)?;
        assert!(seen == expected, "after Write Zeroes");
    }
    if told("Dataset Management", commands.deallocate(&[(LBA + 5, 1), (LBA + 8, 8)]))? {
        commands.read(LBA, &mut seen)?;
        // What was deallocated may read as anything that DLFEAT says; the rest stays.
        assert!(seen[..5 * block] == expected[..5 * block], "before what was deallocated");
        assert!(seen[6 * block..8 * block] == expected[6 * block..8 * block], "between");
    }
    told("Write Uncorrectable", commands.write_uncorrectable(LBA, 1))?;
    commands.flush()?;
    println!("Flush: checked");
    Ok(())
}

fn admin_commands(controller: &Controller<VfioFunction>) -> Result<(), Box<dyn Error>> {
    for on in [false, true] {
        told("write cache", controller.set_write_cache(on))?;
        let value = controller.feature(FeatureId::VOLATILE_WRITE_CACHE)?;
        assert_eq!(value.map(|value| value & 1 != 0), Some(on));
    }
    println!("power state {}", controller.power_state()?);
    println!("error log: {} entries", controller.error_log()?.len());
    println!("firmware: {}", controller.firmware_log()?.revisions[0].escape_ascii());
    told("APST", controller.apst().map(drop))?;
    told("Changed Namespace List", controller.changed_namespaces().map(drop))?;
    controller.ask_for_events()?;
    controller.set_feature(FeatureId::ASYNC_EVENTS, 0x1f)?;
    controller.smart()?;
    // The drive is warmer than this, so it reports.
    controller.set_feature(FeatureId::TEMPERATURE_THRESHOLD, 200)?;
    let mut events = Vec::new();
    for _ in 0..100 {
        events.extend(controller.take_events()?);
        if !events.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    println!("events: {events:?}");
    for event in events {
        println!("event: {event}");
    }
    Ok(())
}
