//! Windows' drives stay Windows': nothing is taken, and nothing has to be given back.

use super::session::{Column, Hands, Observer};
use crate::failure::Failure;
use crate::preflight::{self, Host, TakeOptions};
use nvpoll_engine::Target;

/// Holds nothing. Before a stack writes it looks once more whether anything uses what is written: a
/// volume may have been mounted since.
#[derive(Debug)]
pub struct HostHands {
    host: Host,
    writes: bool,
}

impl HostHands {
    /// Hands for a plan that `writes` or does not.
    pub fn new(host: Host, _options: TakeOptions, writes: bool) -> Self {
        Self { host, writes }
    }

    /// There is nothing to hold.
    ///
    /// # Errors
    /// Never.
    pub fn hold_bound(&mut self, _columns: &[Column]) -> Result<(), Failure> {
        Ok(())
    }
}

impl Hands for HostHands {
    fn ready(&mut self, column: &Column, _observer: &mut dyn Observer) -> Result<(), Failure> {
        if self.writes {
            column.subjects.iter().try_for_each(preflight::check_unused)?;
        }
        Ok(())
    }

    fn targets(&self, column: &Column) -> Result<Vec<(Target, u32)>, Failure> {
        let subjects = column.subjects.iter();
        subjects.map(|subject| subject.engine_target(&self.host, column.kind)).collect()
    }

    fn give_back(&mut self, _observer: &mut dyn Observer) -> Result<(), Failure> {
        Ok(())
    }
}
