//! A controller's way up: what it may be like, what it may do wrong, and how long it may take.

use crate::fake::{Character, Fake};
use crate::order::assert_orderly;
use crate::spy::{Event, Log, Spy};
use crate::support::*;
use nvpoll_nvme::limits::READY_WAIT_MIN;
use nvpoll_nvme::{Controller, NvmeError, Options, PairOptions, QueuePair};
use nvpoll_soft::SoftController;
use nvpoll_spec::{
    Capabilities, ControllerConfiguration, ControllerStatus, ShutdownStatus, Status,
};
use std::sync::Arc;
use std::time::Instant;

type Opened = Result<Arc<Controller<Spy<Fake>>>, NvmeError>;

fn open_fake(character: Character) -> (Opened, Arc<Log>) {
    let (spy, log) = Spy::new(Fake::new(character));
    (Controller::open(spy, Options::default()), log)
}

fn soft(text: &str) -> Arc<SoftController> {
    SoftController::start(options(text)).unwrap()
}

#[test]
fn a_controller_that_never_becomes_ready_is_given_up() {
    let soft = soft("soft:size=1M,stepped,timeout=500ms");
    soft.faults().set_never_ready(true);
    let start = Instant::now();
    let (controller, log) = open(&soft, Options::default());
    // No longer than its own bound: not once more on the way down.
    assert!(start.elapsed() < PATIENCE);
    let error = controller.unwrap_err();
    match &error {
        NvmeError::Timeout { what, waited, csts, .. } => {
            assert_eq!((*what, *csts), ("CSTS.RDY after enabling", 0));
            assert!(*waited >= READY_WAIT_MIN && *waited < PATIENCE, "{waited:?}");
        }
        other => panic!("{other:?}"),
    }
    let text = error.to_string();
    assert!(text.contains("CSTS 0x00000000") && !text.contains('\n'), "{text}");
    let events = log.take_events();
    let configured: Vec<_> =
        events.iter().filter(|event| matches!(event, Event::Configure(_))).collect();
    assert_eq!(configured.len(), 2, "enabled, disabled, and no shutdown asked of it: {events:?}");
    assert_eq!(log.mapped(), [0; 0]);
}

#[test]
fn a_fatal_status_while_enabling_ends_the_wait() {
    let soft = soft("soft:size=1M,stepped,timeout=127500ms");
    soft.faults().set_fatal();
    let start = Instant::now();
    let (controller, log) = open(&soft, Options::default());
    match controller {
        Err(NvmeError::Fatal { csts, .. }) => assert_eq!(csts & 2, 2),
        other => panic!("{other:?}"),
    }
    assert!(start.elapsed() < PATIENCE, "CAP.TO is twice that");
    assert_eq!(log.mapped(), [0; 0]);
    // It was reset on the way down, which is what helps.
    assert!(open(&soft, Options::default()).0.is_ok());
}

#[test]
fn a_device_that_is_gone_is_said_to_be() {
    let gone = soft("soft:size=1M,stepped");
    gone.faults().vanish();
    let (controller, log) = open(&gone, Options::default());
    assert!(matches!(controller, Err(NvmeError::Gone { what: "CAP", .. })), "{controller:?}");
    assert_eq!(log.take_events(), [Event::Closed], "it was not touched");
}

#[test]
fn a_device_that_goes_while_it_is_enabled_is_said_to_be_gone() {
    let soft = soft("soft:size=1M,stepped");
    let (spy, log) = Spy::new(nvpoll_pci::soft::SoftFunction::over(Arc::clone(&soft)));
    let device = Arc::clone(&soft);
    log.hook(move |event| {
        if matches!(event, Event::Configure(cc) if cc.enable()) {
            device.faults().vanish();
        }
    });
    let controller = Controller::open(spy, Options::default());
    assert!(matches!(controller, Err(NvmeError::Gone { .. })), "{controller:?}");
    let writes = |event: &&Event| matches!(event, Event::Configure(_));
    assert_eq!(log.take_events().iter().filter(writes).count(), 1, "nothing is written to it");
    assert_eq!(log.mapped(), [0; 0]);
}

/// What the last owner left behind: the driver disables before it maps anything.
#[test]
fn a_controller_that_somebody_left_running_is_disabled_first() {
    let running = ControllerConfiguration::new().with_enable(true);
    let shut_down = running.with_shutdown(1);
    let status = ControllerStatus::new();
    let complete = status.with_shutdown(ShutdownStatus::Complete);
    for (name, left, waits) in [
        ("ready", (running, status.with_ready(true)), false),
        ("still becoming ready", (running, status), true),
        ("fatal", (running, status.with_fatal(true)), false),
        ("shut down", (shut_down, complete), false),
        ("shut down and ready", (shut_down, complete.with_ready(true)), false),
        ("disabled, still ready", (running.with_enable(false), status.with_ready(true)), false),
    ] {
        let (controller, log) = open_fake(Character { left, ..Character::default() });
        assert!(controller.is_ok(), "{name}: {controller:?}");
        let events = log.take_events();
        let mapped = events.iter().position(|event| matches!(event, Event::Map(_))).unwrap();
        let before = &events[..mapped];
        let off = before.iter().position(|event| matches!(event, Event::Configure(_)));
        assert_eq!(off.is_some(), left.0.enable(), "{name}: {events:?}");
        for event in before {
            assert!(!matches!(event, Event::Configure(cc) if cc.enable() || cc.shutdown() != 0));
        }
        let fell = before.last();
        assert!(
            matches!(fell, Some(Event::Status(status)) if !status.ready()),
            "{name}: {events:?}"
        );
        let rose = |event: &Event| matches!(event, Event::Status(status) if status.ready());
        if let Some(off) = off {
            let was_ready = before[..off].iter().any(rose);
            assert_eq!(was_ready, waits || left.1.ready(), "{name}: {events:?}");
        }
        drop(controller);
        assert_orderly(&log.take_events());
    }
}

#[test]
fn a_controller_that_hangs_on_its_way_up_is_disabled_all_the_same() {
    let running = ControllerConfiguration::new().with_enable(true);
    let left = (running, ControllerStatus::new());
    let start = Instant::now();
    let (controller, _) =
        open_fake(Character { left, hung_at_first: true, ..Character::default() });
    assert!(controller.is_ok(), "{controller:?}");
    assert!(start.elapsed() >= READY_WAIT_MIN);
}

#[test]
fn what_is_not_driven_is_refused_before_it_is_touched() {
    let good = Character::default().capabilities;
    for (name, capabilities, says) in [
        ("no entries", good.with_mqes_z(0), "CAP.MQES is 0"),
        ("pages of 128 KiB", good.with_page_size_min(5), "pages of 131072 bytes (CAP.MPSMIN)"),
        ("largest pages", good.with_page_size_min(15), "pages of 134217728 bytes (CAP.MPSMIN)"),
        ("no command set", good.with_command_sets(0), "CSS bit 0"),
        ("admin only", good.with_command_sets(0x80), "CSS bit 0"),
        ("nothing at all", Capabilities::new(), "CSS bit 0"),
    ] {
        let (controller, log) = open_fake(Character { capabilities, ..Character::default() });
        match controller {
            Err(NvmeError::Unsupported { reason, .. }) => {
                assert!(reason.contains(says), "{name}: {reason}");
            }
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(log.take_events(), [Event::Closed], "{name}");
    }
}

#[test]
fn what_is_odd_but_right_is_driven() {
    let good = Character::default().capabilities;
    for capabilities in [
        good.with_mqes_z(1),
        good.with_mqes_z(u16::MAX),
        good.with_timeout_500ms(0),
        good.with_timeout_500ms(255),
        good.with_page_size_max(15),
        good.with_page_size_min(1).with_page_size_max(1),
        good.with_page_size_min(4).with_page_size_max(15),
        good.with_page_size_min(4).with_page_size_max(0),
        good.with_command_sets(0xc1),
        good.with_command_sets(0x40),
        good.with_command_sets(0x43),
        good.with_contiguous_queues(false),
        good.with_doorbell_stride(3),
        good.with_subsystem_reset(true).with_arbitration(3),
    ] {
        let (controller, log) = open_fake(Character { capabilities, ..Character::default() });
        let controller = controller.unwrap_or_else(|error| panic!("{capabilities:?}: {error}"));
        let namespace = controller.namespace(1).unwrap();
        let options = PairOptions { depth: 1, io_bytes: 512, ..PairOptions::default() };
        drop(QueuePair::new(&controller, &namespace, options).unwrap());
        drop(controller);
        assert_orderly(&log.take_events());
    }
}

/// Doorbells that stand so far apart that they leave the BAR: known before the device is told.
#[test]
fn a_doorbell_beyond_the_bar_is_an_error() {
    let capabilities = Character::default().capabilities.with_doorbell_stride(10);
    let (controller, log) = open_fake(Character { capabilities, ..Character::default() });
    let controller = controller.unwrap_err();
    assert!(matches!(controller, NvmeError::Register { .. }), "{controller:?}");
    assert_eq!(log.mapped(), [0; 0]);

    let capabilities = Character::default().capabilities.with_doorbell_stride(9);
    let (controller, log) = open_fake(Character { capabilities, ..Character::default() });
    let controller = controller.unwrap();
    let namespace = controller.namespace(1).unwrap();
    let mapped = log.mapped();
    for _ in 0..2 {
        let options = PairOptions { depth: 1, io_bytes: 512, ..PairOptions::default() };
        let error = QueuePair::new(&controller, &namespace, options).unwrap_err();
        assert!(matches!(error, NvmeError::Register { .. }), "{error:?}");
        assert_eq!(log.mapped(), mapped, "nothing is left behind");
    }
}

#[test]
fn the_least_queue_moves_data() {
    let bench = Bench::new(options("soft:size=1M,mqes=2,stepped"));
    let mut pair = bench.pair(1, 1);
    pair.fill(0, &[7; 512]);
    assert_eq!(run(&mut pair, 0, write(5, 1)), Status::SUCCESS);
    pair.fill(0, &[0; 512]);
    assert_eq!(run(&mut pair, 0, read(5, 1)), Status::SUCCESS);
    let mut back = [0; 512];
    pair.copy_out(0, &mut back);
    assert_eq!(back, [7; 512]);
}
