//! Taking and giving back, with every step made to fail.

use std::time::Duration;

use nix::libc::{EBUSY, EIO, ENODEV};

use super::{FIRST, address, drive, machine, plain};
use crate::fake::{BOUND, Fault, MULTIPATH, Machine, Namespaces};
use crate::{ErrorKind, GiveBackOptions, Host, HostError, Outcome, TakeOptions, Taken, UserDriver};

fn take(host: &Host) -> Result<Taken, HostError> {
    host.take(&drive(host, FIRST), UserDriver::VfioPci, &TakeOptions::default())
}

fn give_back(host: &Host) -> Result<crate::GivenBack, HostError> {
    host.give_back(address(FIRST), &GiveBackOptions::default())
}

fn has_record(host: &Host) -> bool {
    host.record(address(FIRST)).unwrap().is_some()
}

#[test]
fn a_drive_is_taken_and_given_back_as_it_was() {
    for tree in [crate::fake::PLAIN, MULTIPATH] {
        let (machine, host) = machine(tree);
        let before = machine.state(FIRST);
        let taken = take(&host).unwrap();
        assert_eq!(taken.group(), Some(2));
        assert_eq!(taken.nodes(), [std::path::Path::new("/dev/vfio/2")]);
        assert_eq!(taken.found().serial.as_deref(), Some("D0"));
        let now = drive(&host, FIRST);
        assert_eq!(now.driver.as_deref(), Some("vfio-pci"));
        assert_eq!(now.driver_override, None, "cleared as soon as the driver has it");
        let given = taken.give_back().unwrap();
        assert_eq!(given.outcome, Outcome::Restored);
        assert_eq!(given.driver.as_deref(), Some("nvme"));
        assert!(given.namespaces_back && given.missing.is_empty() && given.renamed.is_empty());
        assert_eq!(machine.state(FIRST), before);
        assert!(!has_record(&host));
    }
}

#[test]
fn the_record_is_there_before_the_first_change() {
    let (machine, host) = plain();
    machine.fail(0, Fault::Refused(EIO));
    machine.before_each_write(|machine| {
        assert!(machine.join("run/nvpoll/0000:00:04.0.json").exists());
    });
    take(&host).unwrap_err();
    machine.mend();
    take(&host).unwrap().give_back().unwrap();
    assert!(machine.writes().len() > 6);
}

#[test]
fn dropping_gives_back_and_handing_over_stays() {
    let (machine, host) = plain();
    let before = machine.state(FIRST);
    drop(take(&host).unwrap());
    assert_eq!(machine.state(FIRST), before);
    let options = TakeOptions { persistent: true, ..TakeOptions::default() };
    drop(host.take(&drive(&host, FIRST), UserDriver::VfioPci, &options).unwrap());
    assert_eq!(drive(&host, FIRST).driver.as_deref(), Some("vfio-pci"));
    let error = take(&host).unwrap_err().to_string();
    assert!(error.contains("handed over to vfio-pci already"), "{error}");
    give_back(&host).unwrap();
    assert_eq!(machine.state(FIRST), before);
}

#[test]
fn a_panic_gives_back() {
    let (machine, host) = plain();
    let before = machine.state(FIRST);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _taken = take(&host).unwrap();
        panic!("in the middle");
    }));
    assert!(result.is_err());
    assert_eq!(machine.state(FIRST), before);
}

#[test]
fn a_drive_without_driver_has_none_afterwards() {
    let (machine, host) = machine(BOUND);
    let second = host.drive(address("0000:00:05.0")).unwrap();
    let before = machine.state("0000:00:05.0");
    let taken = host.take(&second, UserDriver::VfioPci, &TakeOptions::default()).unwrap();
    let given = taken.give_back().unwrap();
    assert_eq!((given.driver, given.namespaces_back), (None, true));
    assert_eq!(machine.state("0000:00:05.0"), before);
}

#[test]
fn a_drive_that_others_bound_stays_with_their_driver_and_override() {
    let (machine, host) = machine(BOUND);
    let before = machine.state(FIRST);
    let taken = take(&host).unwrap();
    assert_eq!(machine.writes(), [], "it is where it should be");
    assert_eq!(taken.give_back().unwrap().outcome, Outcome::AsItWas);
    assert_eq!(machine.state(FIRST), before);
    let nodes = ["/dev/vfio/2", "/dev/vfio/devices/vfio0"].map(std::path::PathBuf::from);
    assert_eq!(host.user_nodes(&drive(&host, FIRST)), nodes);
    let error = give_back(&host).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("(it is on vfio-pci)"), "{error}");
    assert!(error.to_string().contains("--to nvme"), "{error}");
    let options = GiveBackOptions { to: Some("nvme".to_owned()) };
    let given = host.give_back(address(FIRST), &options).unwrap();
    assert_eq!((given.outcome, given.driver.as_deref()), (Outcome::Given, Some("nvme")));
    assert_eq!(drive(&host, FIRST).driver_override, None);
    for to in ["../x", "", "no such driver"] {
        let options = GiveBackOptions { to: Some(to.to_owned()) };
        assert!(host.give_back(address("0000:00:05.0"), &options).is_err(), "{to}");
        assert_eq!(drive(&host, "0000:00:05.0").driver_override, None);
    }
}

#[test]
fn an_override_that_was_set_is_set_again() {
    let (machine, host) = plain();
    machine.write("/sys/bus/pci/devices/0000:00:04.0/driver_override", "nvme\n");
    let before = machine.state(FIRST);
    let taken = take(&host).unwrap();
    assert_eq!(drive(&host, FIRST).driver_override.as_deref(), Some("nvme"));
    taken.give_back().unwrap();
    assert_eq!(machine.state(FIRST), before);
}

const FAULTS: [Fault; 4] =
    [Fault::Refused(EIO), Fault::Refused(EBUSY), Fault::DoneButFails(ENODEV), Fault::Ignored];

/// How many writes a take and its give-back do.
fn writes() -> usize {
    let (machine, host) = plain();
    take(&host).unwrap().give_back().unwrap();
    machine.writes().len()
}

/// After a take that failed: as it was and no record, or a record that mends it.
fn check_after(machine: &Machine, host: &Host, before: &str, error: &HostError, case: &str) {
    machine.mend();
    let HostError::Change(change) = error else { panic!("{case}: {error}") };
    assert_eq!(error.exit_status(), 1);
    if change.not_restored.is_empty() {
        assert_eq!(machine.state(FIRST), before, "{case}: {error}");
        assert!(!has_record(host), "{case}");
        assert!(error.to_string().contains("as it was found"), "{case}: {error}");
    } else {
        assert!(error.to_string().contains("NOT put back"), "{case}: {error}");
        assert!(has_record(host), "{case}: {error}");
        give_back(host).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(machine.state(FIRST), before, "{case}");
        assert!(!has_record(host), "{case}");
    }
}

#[test]
fn any_one_failure_while_taking_leaves_the_drive_as_it_was() {
    let (machine, host) = plain();
    let before = machine.state(FIRST);
    for (nth, fault) in (0..writes()).flat_map(|nth| FAULTS.map(|fault| (nth, fault))) {
        let case = format!("write {nth}: {fault:?}");
        machine.fail(nth, fault);
        match take(&host) {
            Err(error) => {
                check_after(&machine, &host, &before, &error, &case);
                let HostError::Change(change) = &error else { unreachable!() };
                assert_eq!(change.not_restored, Vec::<String>::new(), "{case}: one failure");
            }
            Ok(taken) => {
                assert_eq!(drive(&host, FIRST).driver.as_deref(), Some("vfio-pci"));
                assert_eq!(drive(&host, FIRST).driver_override, None, "{case}");
                machine.mend();
                taken.give_back().unwrap();
            }
        }
        assert_eq!(machine.state(FIRST), before, "{case}");
    }
}

#[test]
fn any_two_failures_leave_the_drive_as_it_was_or_a_record_that_mends_it() {
    let (machine, host) = plain();
    let before = machine.state(FIRST);
    let pairs = || FAULTS.into_iter().flat_map(|one| FAULTS.map(|two| (one, two)));
    let places = (0..writes()).flat_map(|one| (one + 1..writes() + 6).map(move |two| (one, two)));
    let mut mended = 0;
    for ((first, second), (one, two)) in places.flat_map(|place| pairs().map(move |p| (place, p))) {
        let case = format!("write {first}: {one:?}, write {second}: {two:?}");
        machine.fail(first, one);
        machine.fail(second, two);
        match take(&host) {
            Err(error) => {
                mended += usize::from(error.to_string().contains("NOT put back"));
                check_after(&machine, &host, &before, &error, &case);
            }
            Ok(taken) => {
                let given = taken.give_back();
                machine.mend();
                assert_eq!(given.is_err(), has_record(&host), "{case}: {given:?}");
                if given.is_err() {
                    give_back(&host).unwrap();
                }
            }
        }
        assert_eq!(machine.state(FIRST), before, "{case}");
    }
    assert!(mended > 0, "no pair of failures broke a roll-back: the cases miss it");
}

#[test]
fn any_failure_while_giving_back_keeps_the_record_until_it_is_mended() {
    let (machine, host) = plain();
    let before = machine.state(FIRST);
    for (nth, fault) in (0..writes()).flat_map(|nth| FAULTS.map(|fault| (nth, fault))) {
        let case = format!("write {nth}: {fault:?}");
        let taken = take(&host).unwrap();
        machine.fail(nth, fault);
        let given = taken.give_back();
        machine.mend();
        assert_eq!(given.is_err(), has_record(&host), "{case}: {given:?}");
        if let Err(error) = given {
            assert!(error.to_string().contains("tries again"), "{case}: {error}");
            give_back(&host).unwrap();
        }
        assert_eq!(machine.state(FIRST), before, "{case}");
    }
}

#[test]
fn a_driver_that_refuses_is_told_with_the_kernels_reason() {
    let (machine, host) = plain();
    let before = machine.state(FIRST);
    // Writes: override, unbind, drivers_probe, the driver's own bind.
    machine.fail(2, Fault::Ignored);
    machine.fail(3, Fault::Refused(ENODEV));
    let error = take(&host).unwrap_err().to_string();
    assert!(error.contains("binding it to vfio-pci failed: No such device"), "{error}");
    assert_eq!(machine.state(FIRST), before);
}

#[test]
fn a_node_is_asked_for_when_it_is_opened() {
    let (_machine, host) = plain();
    let node = host.kernel_node(address("0000:00:05.0"), 2).unwrap();
    let generic = host.generic_node(address("0000:00:05.0"), 2).unwrap();
    let of_block = node.to_str().unwrap().replace("/nvme", "/ng");
    assert_eq!(generic.to_str(), Some(of_block.as_str()));
    assert_eq!(node, std::path::Path::new("/dev/nvme1n1"));
    assert!(host.kernel_node(address(FIRST), 7).is_err());
    assert_eq!(host.user_nodes(&drive(&host, FIRST)), Vec::<std::path::PathBuf>::new());
    let taken = take(&host).unwrap();
    let error = host.kernel_node(address(FIRST), 1).unwrap_err().to_string();
    assert!(error.contains("no block device for its namespace 1; it is on vfio-pci"), "{error}");
    assert_eq!(host.user_nodes(&drive(&host, FIRST)), taken.nodes());
    taken.give_back().unwrap();
}

#[test]
fn namespaces_are_waited_for() {
    let (machine, host) = plain();
    let taken = take(&host).unwrap();
    machine.namespaces(Namespaces::After(Duration::from_secs(3)));
    assert!(taken.give_back().unwrap().namespaces_back);
    let taken = take(&host).unwrap();
    machine.namespaces(Namespaces::Never);
    let given = taken.give_back().unwrap();
    assert!(!given.namespaces_back);
    let missing: Vec<_> = given.missing.iter().map(|node| node.to_str().unwrap()).collect();
    assert_eq!(missing, ["/dev/nvme0n1", "/dev/ng0n1"]);
    assert!(!has_record(&host), "nothing is left to be restored");
}

#[test]
fn a_group_without_its_node_is_rolled_back() {
    let (machine, host) = plain();
    let before = machine.state(FIRST);
    machine.without_nodes();
    let error = take(&host).unwrap_err().to_string();
    assert!(error.contains("waiting for its node under /dev/vfio failed"), "{error}");
    assert_eq!(machine.state(FIRST), before);
}

#[test]
fn what_the_machine_lacks_is_told_before_anything_is_touched() {
    const GROUP: &str = "/sys/devices/pci0000:00/0000:00:04.0/iommu_group";
    type Case = (fn(&Machine), UserDriver, &'static str);
    let cases: [Case; 3] = [
        (|_| {}, UserDriver::UioPciGeneric, "behind the IOMMU (domain DMA)"),
        (
            |machine| std::fs::remove_file(machine.path(GROUP)).unwrap(),
            UserDriver::VfioPci,
            "no IOMMU stands in front of it",
        ),
        (
            |machine| std::fs::remove_dir(machine.path("/sys/bus/pci/drivers/vfio-pci")).unwrap(),
            UserDriver::VfioPci,
            "this kernel has no driver vfio-pci (modprobe vfio-pci: there are no modules here)",
        ),
    ];
    for (make, driver, seen) in cases {
        let (machine, host) = plain();
        make(&machine);
        let error = host.take(&drive(&host, FIRST), driver, &TakeOptions::default()).unwrap_err();
        assert!(error.to_string().contains(seen), "{error}");
        assert_eq!(error.exit_status(), 2);
        assert_eq!(machine.writes(), []);
        assert!(!has_record(&host));
    }
}

#[test]
fn uio_takes_what_no_iommu_guards() {
    let (machine, host) = plain();
    let before = machine.state(FIRST);
    machine.write("/sys/kernel/iommu_groups/2/type", "identity\n");
    let options = TakeOptions::default();
    let taken = host.take(&drive(&host, FIRST), UserDriver::UioPciGeneric, &options).unwrap();
    assert_eq!(taken.nodes(), [std::path::Path::new("/dev/uio0")]);
    let error = host.set_owner(&taken, 1000, 1000).unwrap_err().to_string();
    assert!(error.contains("only root"), "{error}");
    taken.give_back().unwrap();
    assert_eq!(machine.state(FIRST), before);
}

#[test]
fn a_drive_that_is_still_driven_is_not_given_back() {
    let (machine, host) = plain();
    let taken = take(&host).unwrap();
    // This process itself has it open: an unbind would wait for ever.
    machine.open(std::process::id(), 9, "/dev/vfio/2");
    let error = taken.give_back().unwrap_err();
    assert_eq!(error.exit_status(), 3);
    assert!(error.to_string().contains("through /dev/vfio/2 by nvpoll"), "{error}");
    assert!(has_record(&host));
    std::fs::remove_file(machine.path(&format!("/proc/{}/fd/9", std::process::id()))).unwrap();
    assert_eq!(give_back(&host).unwrap().outcome, Outcome::Restored, "the second try");
}

/// The kernel removes the drive while it is given back: at whichever step, nothing is left over.
#[test]
fn a_drive_that_is_unplugged_while_it_is_given_back_is_gone() {
    let mut steps = 0;
    for at in 0.. {
        let (machine, host) = plain();
        let taken = take(&host).unwrap();
        let written = machine.writes().len();
        machine.fail(at, Fault::Unplugged);
        let given = taken.give_back().unwrap();
        assert!(!has_record(&host), "step {at}");
        assert!(!machine.path("/run/nvpoll/0000:00:04.0.lock").exists(), "step {at}");
        if given.outcome != Outcome::Gone {
            steps = machine.writes().len() - written;
            assert_eq!(at, steps, "all steps went well before it");
            break;
        }
        assert_eq!((given.driver, given.namespaces_back), (None, true), "step {at}");
    }
    assert!(steps >= 3, "{steps}");
}

#[test]
fn a_drive_that_is_unplugged_while_it_is_taken_leaves_no_record() {
    for at in 0..3 {
        let (machine, host) = plain();
        machine.fail(at, Fault::Unplugged);
        let error = take(&host).unwrap_err();
        assert!(matches!(error, HostError::Replaced { .. }), "step {at}: {error}");
        assert!(error.to_string().contains("unplugged while it was taken"), "{error}");
        assert!(!has_record(&host), "step {at}");
        assert!(!machine.path("/run/nvpoll/0000:00:04.0.lock").exists(), "step {at}");
    }
}

#[test]
fn limits_on_locked_memory() {
    let (_machine, host) = plain();
    let memlock = host.memlock().unwrap();
    assert_eq!((memlock.soft, memlock.hard), (Some(8_388_608), None));
}

#[test]
fn nodes_are_given_to_a_user() {
    let (_machine, host) = plain();
    let taken = take(&host).unwrap();
    let given = host.set_owner(&taken, 1000, 1000).unwrap();
    let given: Vec<_> = given.iter().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(given, ["/dev/vfio/2", "/run/nvpoll/0000:00:04.0.lock"]);
    taken.give_back().unwrap();
}

#[test]
fn a_drive_that_is_handed_over_gets_another_owner_and_no_other_does() {
    let (machine, host) = plain();
    let give = || host.give_to(address(FIRST), 1000, 50);
    let error = give().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("nvpoll bind 0000:00:04.0"), "{error}");
    let taken = take(&host).unwrap();
    assert!(matches!(give(), Err(HostError::Held { .. })), "a process has it");
    taken.give_back().unwrap();
    let options = TakeOptions { persistent: true, ..TakeOptions::default() };
    let taken = host.take(&drive(&host, FIRST), UserDriver::VfioPci, &options).unwrap();
    host.set_owner(&taken, 1001, 1001).unwrap();
    drop(taken);
    let given = give().unwrap();
    assert_eq!(given.len(), 2, "{given:?}");
    let owners = [("/dev/vfio/2", 1001), ("/dev/vfio/2", 1000)]
        .map(|(path, uid)| machine.owners().into_iter().any(|(p, u, _)| p == path && u == uid));
    assert_eq!(owners, [true, true]);
    let lock = ("/run/nvpoll/0000:00:04.0.lock".to_owned(), 1000, 50);
    assert!(machine.owners().contains(&lock), "{:?}", machine.owners());
    let record = "/run/nvpoll/0000:00:04.0.json";
    assert!(machine.owners().iter().all(|(path, ..)| path != record), "the record stays root's");
    machine.deny("/sys/bus/pci/drivers_probe", nix::libc::EACCES);
    assert!(give().unwrap_err().to_string().contains("needs root"));
    assert!(give_back(&host).unwrap_err().to_string().contains("sudo nvpoll unbind"));
}
