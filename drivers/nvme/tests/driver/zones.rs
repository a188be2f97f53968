//! The commands of a zoned namespace on the soft controller: what the lab runs on QEMU's.

#[path = "../../examples/commands/zones.rs"]
mod checks;

use nvpoll_nvme::{Controller, Options};
use nvpoll_pci::soft::SoftFunction;

#[test]
fn the_commands_of_zones_do_what_they_say() {
    for limits in ["", ",mar=3,mor=2", ",zcap=3M,mar=4,mor=4"] {
        let options = format!("soft:size=64M,lba=4096,zoned=4M{limits},stepped").parse().unwrap();
        let function = SoftFunction::open(&options).unwrap();
        let controller = Controller::open(function, Options::default()).unwrap();
        let namespace = controller.namespace(1).unwrap();
        let zones = namespace.zones.unwrap();
        assert_eq!((zones.zone_blocks, zones.count), (1024, 16));
        checks::check(&controller, &namespace, &zones).unwrap();
    }
}
