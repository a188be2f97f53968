//! The contract suite: what every engine in the list promises, on every target that this machine
//! has for it.
//!
//! Each promise is a generic function in [`promises`]; `contract!` makes a test of each, which runs
//! it over [`EngineKind::ALL`](nvpoll_engine::EngineKind::ALL). An engine without a target here is
//! named on stderr with what would give it one; see [`cases`] for the variables that add drives.

mod cases;
#[cfg(target_os = "linux")]
mod kernel;
mod lane;
mod promises;
#[cfg_attr(target_os = "linux", path = "linux.rs")]
#[cfg_attr(windows, path = "windows.rs")]
mod system;

macro_rules! contract {
    ($($promise:ident)*) => {
        $(#[test]
        fn $promise() {
            struct Promise;
            impl cases::Promise for Promise {
                fn check<E: nvpoll_engine::Engine>(case: &cases::Case) {
                    promises::$promise::<E>(case);
                }
            }
            cases::check_everywhere::<Promise>();
        })*
    };
}

contract! {
    an_open_target_has_a_sane_geometry_and_facts
    every_pushed_tag_comes_back_exactly_once
    the_depth_can_be_kept_full
    what_is_written_is_read_back_at_every_size_and_offset
    each_tag_has_a_buffer_of_its_own
    a_flush_completes
    a_bad_operation_fails_alone_and_harms_nothing
    a_target_opened_for_reading_takes_no_write
    a_reap_that_may_not_wait_returns_at_once
    a_wait_with_nothing_in_flight_ends_in_time
    a_queue_may_be_dropped_with_io_in_flight
    queues_on_several_threads_do_not_mix
    a_shape_outside_the_geometry_is_refused
}
