//! The device in a thread of its own.

use crate::device::Device;
use crate::shared::Shared;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Passes without work between two looks at the clock.
const PASSES: u32 = 256;
/// Without work for this long, the thread lets others run between its looks.
const YIELD_AFTER: Duration = Duration::from_millis(1);
/// Without work for this long, it sleeps between its looks.
const SLEEP_AFTER: Duration = Duration::from_millis(10);
/// How long it sleeps then.
const SLEEP: Duration = Duration::from_micros(50);
/// Without work for this long, its sleeps are longer.
const REST_AFTER: Duration = Duration::from_millis(100);
/// How long they are then: waking up costs some machines a quarter of a short sleep.
const REST: Duration = Duration::from_micros(500);
/// How long a disabled device sleeps, unless a register is written.
const PARK: Duration = Duration::from_millis(100);
/// How long dropping a controller waits for the thread, which may be in a call of the file system.
const JOIN: Duration = Duration::from_secs(5);

/// Starts the device's thread.
pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    let in_thread = Arc::clone(shared);
    let handle = thread::Builder::new()
        .name("nvpoll-soft".to_owned())
        .spawn(move || run(&in_thread, &mut in_thread.lock_device()))?;
    // Set once: a second thread is never started.
    let _ = shared.thread.set(handle.thread().clone());
    Ok(handle)
}

/// Stops the device's thread and waits for it, but not for ever.
pub(crate) fn stop(shared: &Shared, handle: JoinHandle<()>) {
    shared.stop.store(true, Ordering::Release);
    let start = Instant::now();
    while !handle.is_finished() {
        if start.elapsed() > JOIN {
            // It ends by itself when its call returns; what it holds is freed then.
            return;
        }
        handle.thread().unpark();
        thread::sleep(Duration::from_micros(100));
    }
    // A panic of the device has been printed by its thread already.
    let _ = handle.join();
}

fn run(shared: &Shared, device: &mut Device) {
    let mut idle = 0;
    let mut since: Option<Instant> = None;
    while !shared.stop.load(Ordering::Relaxed) {
        if device.pass(shared) {
            (idle, since) = (0, None);
            continue;
        }
        if device.is_asleep(shared) {
            thread::park_timeout(PARK);
            continue;
        }
        idle += 1;
        if idle < PASSES {
            std::hint::spin_loop();
            continue;
        }
        idle = 0;
        if device.is_busy() {
            since = None;
            continue;
        }
        match since.get_or_insert_with(Instant::now).elapsed() {
            spent if spent > SLEEP_AFTER => {
                thread::sleep(if spent > REST_AFTER { REST } else { SLEEP });
                idle = PASSES;
            }
            spent if spent > YIELD_AFTER => {
                thread::yield_now();
                idle = PASSES;
            }
            _ => {}
        }
    }
    device.forget_queues(shared);
}
