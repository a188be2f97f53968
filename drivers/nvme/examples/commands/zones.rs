//! The commands of a zoned namespace.

use nvpoll_nvme::{Commands, Controller, Namespace, NvmeError, Zones};
use nvpoll_pci::Function;
use nvpoll_spec::{Status, ZoneAction, ZoneDescriptor, ZoneState};
use std::error::Error;
use std::sync::Arc;

/// Blocks of each write and append.
const BLOCKS: u64 = 4;

/// Drives the second zone through its states, and fills the third.
pub fn check<F: Function>(
    controller: &Arc<Controller<F>>,
    namespace: &Namespace,
    zones: &Zones,
) -> Result<(), Box<dyn Error>> {
    let mut commands = Commands::new(controller, namespace, true)?;
    commands.manage_all_zones(ZoneAction::RESET)?;
    assert!(all(&mut commands)?.iter().all(|zone| zone.state() == ZoneState::EMPTY));
    println!("Zone report: {} zones", all(&mut commands)?.len());
    writing(&mut commands, namespace, zones)?;
    states(&mut commands, zones)?;
    limits(&mut commands, zones)?;
    reading_only(controller, namespace)
}

fn all<F: Function>(commands: &mut Commands<F>) -> Result<Vec<ZoneDescriptor>, NvmeError> {
    let mut zones = Vec::new();
    commands.report_zones(|zone| zones.push(*zone))?;
    Ok(zones)
}

/// The status with which a command failed.
fn status<T>(result: Result<T, NvmeError>) -> Result<Status, NvmeError> {
    match result {
        Err(NvmeError::Command { status, .. }) => {
            Ok(Status::new(status.code_type().0, status.code()))
        }
        Err(other) => Err(other),
        Ok(_) => Ok(Status::SUCCESS),
    }
}

fn writing<F: Function>(
    commands: &mut Commands<F>,
    namespace: &Namespace,
    zones: &Zones,
) -> Result<(), Box<dyn Error>> {
    let start = zones.zone_blocks;
    let bytes = BLOCKS as usize * namespace.block_bytes as usize;
    let data =
        |seed: usize| -> Vec<u8> { (0..bytes).map(|at| ((at + seed) % 251) as u8).collect() };
    assert_eq!(commands.append(start, &data(1))?, start);
    assert_eq!(commands.append(start, &data(2))?, start + BLOCKS);
    commands.write(start + 2 * BLOCKS, &data(3), false)?;
    let zone = commands.zone(start + 1)?;
    assert_eq!(zone.state(), ZoneState::IMPLICITLY_OPENED);
    assert_eq!((zone.start, zone.write_pointer), (start, start + 3 * BLOCKS));
    let mut seen = vec![0; bytes];
    for (index, seed) in (0..).zip(1..=3) {
        commands.read(start + index * BLOCKS, &mut seen)?;
        assert!(seen == data(seed), "what was written as number {seed}");
    }
    let elsewhere = commands.write(start + 7 * BLOCKS, &data(4), false);
    assert_eq!(status(elsewhere)?, Status::ZONE_INVALID_WRITE);
    println!("Zone Append, Write at the pointer: checked");
    Ok(())
}

fn states<F: Function>(commands: &mut Commands<F>, zones: &Zones) -> Result<(), Box<dyn Error>> {
    let start = zones.zone_blocks;
    for (action, state) in [
        (ZoneAction::CLOSE, ZoneState::CLOSED),
        (ZoneAction::OPEN, ZoneState::EXPLICITLY_OPENED),
        (ZoneAction::FINISH, ZoneState::FULL),
    ] {
        commands.manage_zone(start, action)?;
        assert_eq!(commands.zone(start)?.state(), state, "after {action}");
    }
    assert_eq!(
        status(commands.manage_zone(start, ZoneAction::OPEN))?,
        Status::ZONE_INVALID_TRANSITION
    );
    assert_eq!(status(commands.append(start, &[0; 4096]))?, Status::ZONE_FULL);
    commands.manage_zone(start, ZoneAction::RESET)?;
    let zone = commands.zone(start)?;
    assert_eq!((zone.state(), zone.write_pointer), (ZoneState::EMPTY, start));
    println!("Zone Management Send: checked");
    Ok(())
}

fn limits<F: Function>(commands: &mut Commands<F>, zones: &Zones) -> Result<(), Box<dyn Error>> {
    if let Some(most) = zones.open_max {
        for zone in 0..u64::from(most) {
            commands.manage_zone(zone * zones.zone_blocks, ZoneAction::OPEN)?;
        }
        let next = u64::from(most) * zones.zone_blocks;
        let refused = status(commands.manage_zone(next, ZoneAction::OPEN))?;
        assert!(
            [Status::ZONE_TOO_MANY_OPEN, Status::ZONE_TOO_MANY_ACTIVE].contains(&refused),
            "{refused}"
        );
        println!("one zone more than may be open: {refused}");
    }
    commands.manage_all_zones(ZoneAction::RESET)?;
    if let Some(most) = zones.append_bytes_max {
        let refused = commands.append(0, &vec![0; most as usize + 4096]).unwrap_err();
        assert!(refused.to_string().contains("ZASL"), "{refused}");
    }
    let refused = commands.manage_zone(1, ZoneAction::RESET).unwrap_err();
    assert!(refused.to_string().contains("no zone begins at block 1"), "{refused}");
    println!("Zone limits: checked");
    Ok(())
}

/// Without leave to write nothing is reset or appended.
fn reading_only<F: Function>(
    controller: &Arc<Controller<F>>,
    namespace: &Namespace,
) -> Result<(), Box<dyn Error>> {
    let mut commands = Commands::new(controller, namespace, false)?;
    for refused in [
        commands.manage_zone(0, ZoneAction::RESET).err(),
        commands.manage_all_zones(ZoneAction::RESET).err(),
        commands.append(0, &[0; 4096]).err(),
    ] {
        let why = refused.ok_or("it was sent")?.to_string();
        assert!(why.contains("opened for reading only"), "{why}");
    }
    commands.report_zones(|_| ())?;
    println!("Zones without leave to write: checked");
    Ok(())
}
